"""What a rule of the config is and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gateway.settings import Config
from gateway.yaml_tree import Path


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule found, at which setting. A warning is a set-up that works but will disappoint."""

    path: Path
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """A check and the top-level sections it reads; it runs only when these are sound."""

    reads: frozenset[str]
    check: Callable[[Config], Iterator[Finding]]


def rule(check: Callable[[Config], Iterator[Finding]], *reads: str) -> Rule:
    """A rule over the sections named."""
    return Rule(frozenset(reads), check)
