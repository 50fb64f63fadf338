"""Reads settings into frozen values; an error names file, key and value.

Three steps, each of which reports everything it finds: the text (YAML and references to the environment), the shape
(every value by itself), the rules across values. A rule runs when the sections it reads are sound, so that nothing is
reported that follows from another error. Only a config without errors is handed out: a bad file changes nothing.

Values of fields that hold secrets are never shown, and a value that came from the environment is shown as the
reference that the file has.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, Final

from pydantic import ValidationError

from gateway import config_messages, config_rules, yaml_tree
from gateway.settings import Config
from gateway.yaml_tree import Path, Place, Tree

__all__ = ["Config", "ConfigErrors", "Loaded", "Problem", "environment", "load", "parse", "read"]

_SECRET_WORDS: Final = ("key", "hash", "secret", "pepper", "password", "credential")
_SECRET_FIELDS: Final = frozenset({"store", "redis"})


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a config file; as text it reads like a compiler's message."""

    file: str
    line: int | None
    path: str
    message: str
    warning: bool = False

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        parts = [where, "warning"] if self.warning else [where]
        if self.path:
            parts.append(self.path)
        return ": ".join([*parts, self.message])


class ConfigErrors(Exception):
    """The file cannot be used. Holds every error found, and the warnings, in the order of the file."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Loaded:
    """A good config and what is still worth knowing about it."""

    config: Config
    warnings: tuple[Problem, ...]


def load(path: str | os.PathLike[str], environ: Mapping[str, str] | None = None) -> Config:
    """The settings in the file at `path`. Raises ConfigErrors with every error in it.

    `environ` is the process environment unless given.
    """
    return read(path, environ).config


def read(path: str | os.PathLike[str], environ: Mapping[str, str] | None = None) -> Loaded:
    """Like `load`, with the warnings."""
    name = os.fspath(path)
    try:
        with FilePath(name).open("rb") as file:
            data = file.read(yaml_tree.MAX_BYTES + 1)
    except OSError as error:
        raise ConfigErrors((Problem(name, None, "", f"cannot be read: {error.strerror or error}"),)) from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigErrors((Problem(name, line, "", "is not UTF-8 text"),)) from error
    return parse(text, name, environ)


def environment(name: str) -> str | None:
    """A variable of the process environment."""
    return os.environ.get(name)


def parse(text: str, name: str = "config", environ: Mapping[str, str] | None = None) -> Loaded:
    """Like `read`, from text; `name` stands for the file in errors."""
    tree = yaml_tree.read(text, os.environ if environ is None else environ)
    found = _Found(name, tree)
    for fault in tree.faults:
        found.add(fault.path, fault.message, fault.place)
    if tree.broken:
        raise found.errors()
    if not isinstance(tree.value, dict):
        found.add((), "must be a mapping of settings")
        raise found.errors()
    config, damaged = _shape(tree, found)
    if config is not None:
        for rule in config_rules.RULES:
            if damaged.isdisjoint(rule.reads):
                for finding in rule.check(config):
                    found.add(finding.path, finding.message, warning=finding.warning)
    if found.any_errors or config is None:
        raise found.errors()
    return Loaded(config, found.sorted())


def _shape(tree: Tree, found: _Found) -> tuple[Config | None, set[str]]:
    """The config without its damaged sections, and the names of those."""
    faulty = {fault.path for fault in tree.faults}
    damaged = {str(path[0]) for path in faulty if path}
    try:
        config = Config.model_validate(tree.value)
    except ValidationError as error:
        for item in error.errors(include_url=False):
            if config_messages.is_echo(item):
                continue
            path, of_key = config_messages.location(item["loc"])
            damaged.add(str(path[0]))
            if len(path) == 1 and item["type"] == "extra_forbidden":  # a section under a wrong name is missing
                damaged.add(config_messages.suggestion(str(path[0]), config_messages.fields_at(())) or "")
            # A value that could not be filled in from the environment has its error already.
            if not any(path[: len(at)] == at for at in faulty):
                shown = found.shown(path)
                found.add(path, config_messages.explain(item, path, shown, of_key=of_key))
    else:
        return config, damaged
    try:
        sound = {key: value for key, value in tree.value.items() if key not in damaged}
        return Config.model_validate(sound), damaged
    except ValidationError:  # nothing is left to check
        return None, damaged


class _Found:
    """Problems of one file."""

    def __init__(self, name: str, tree: Tree) -> None:
        self._name = name
        self._tree = tree
        self._problems: dict[Problem, None] = {}  # each once, in the order found
        self.any_errors = False

    def add(self, path: Path, message: str, place: Place | None = None, *, warning: bool = False) -> None:
        place = place or self._place(path)
        line = place.line if place is not None else 1
        self._problems[Problem(self._name, line, config_messages.dotted(path), message, warning)] = None
        self.any_errors = self.any_errors or not warning

    def errors(self) -> ConfigErrors:
        return ConfigErrors(self.sorted())

    def sorted(self) -> tuple[Problem, ...]:
        return tuple(sorted(self._problems, key=lambda problem: problem.line or 0))

    def shown(self, path: Path) -> str | None:
        """The value at `path` as it may be shown, None if there is none."""
        value: Any = self._tree.value
        for step in path:
            try:
                value = value[step]
            except (KeyError, IndexError, TypeError):
                return None
        if _is_secret(path):
            return config_messages.HIDDEN
        place = self._tree.places.get(path)
        if place is not None and place.source is not None:
            return place.source
        return config_messages.short(value)

    def _place(self, path: Path) -> Place | None:
        """Where `path` stands, or the nearest thing around it that the file has."""
        for end in range(len(path), -1, -1):
            place = self._tree.places.get(path[:end])
            if place is not None:
                return place
        return None


def _is_secret(path: Path) -> bool:
    names = [step.lower() for step in path if isinstance(step, str)]
    if not names:
        return False
    last = names[-1]
    return last in _SECRET_FIELDS or last.endswith("token") or any(word in last for word in _SECRET_WORDS)
