"""Rules across settings: what no value shows by itself. Each rule reports everything it finds and changes nothing.

A limit or a guarantee that would silently do nothing is an error; a set-up that works but will disappoint is a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from gateway.settings import Config
from gateway.yaml_tree import Path


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule found, at which setting."""

    path: Path
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """A check and the top-level sections it reads; it runs only when they are sound."""

    reads: frozenset[str]
    check: Callable[[Config], Iterator[Finding]]


def rule(check: Callable[[Config], Iterator[Finding]], *reads: str) -> Rule:
    """A rule over the sections named."""
    return Rule(frozenset(reads), check)


RULES: Final[tuple[Rule, ...]] = ()
