"""Writes `docs/configuration.md` from the settings models: `python -m gateway.settings_doc > docs/configuration.md`.

The description of a key is the docstring under its field, the default is the field's own; a test keeps the page equal
to what this prints, so neither can fall behind the code.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Mapping
from itertools import pairwise
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, SecretStr
from pydantic.fields import FieldInfo

from gateway.settings import Config
from gateway.settings_base import MOST, above_zero, auto

_HEAD: Final = """\
# Configuration

One YAML file. `weighbridge check FILE` checks it without starting anything; `weighbridge serve --config FILE` serves
with it, and `SIGHUP` reads it again. A file with an error changes nothing, and every error in it is told at once, with
its line.

- Keys that are not listed here are errors. Names that hold a unit (`_ms`, `_s`, `_tokens`, `usd_…`) take plain numbers.
- `${NAME}` is the environment variable `NAME`, which must be set and not empty; `${NAME:-default}` takes the default
  then. `$${` is a plain `${`. A reference fills in text, never keys.
- Anchors, aliases and `<<` merges work; a key given twice, a tag, a tab and more than one document are errors.
- Values of keys that hold secrets are never shown, neither in errors nor by the admin API.

[config.example.yaml](config.example.yaml) shows most of it at work. This page is made from the code:
`python -m gateway.settings_doc > docs/configuration.md`.
"""
_BOUNDS: Final = {"gt": "above {}", "ge": "at least {}", "lt": "below {}", "le": "at most {}"}
_WORDS: Final = {int: "whole number", float: "number", str: "text", bool: "true or false", SecretStr: "secret text"}


def document() -> str:
    """The page."""
    places: dict[type[BaseModel], str] = {Config: ""}
    _find(Config, "", places)
    return "\n".join([_HEAD, *(_section(model, path, places) for model, path in places.items())])


def _find(model: type[BaseModel], path: str, places: dict[type[BaseModel], str]) -> None:
    """Give every model inside `model` a place: the first path to it, the shorter paths first."""
    found: list[tuple[type[BaseModel], str]] = []
    for name, field in model.model_fields.items():
        _, inner, suffix = _words(field.annotation, list(field.metadata), places)
        if inner is not None and inner not in places:
            places[inner] = f"{path}.{field.alias or name}{suffix}".removeprefix(".")
            found.append((inner, places[inner]))
    # A model's parts follow it, so they are taken out and put in again behind their own parts' owner.
    for inner, where in found:
        del places[inner]
        places[inner] = where
        _find(inner, where, places)


def _section(model: type[BaseModel], path: str, places: Mapping[type[BaseModel], str]) -> str:
    docs = _docstrings(model)
    lines = [
        f"## {f'`{path}`' if path else 'The file'}\n\n{_one_line(inspect.getdoc(model) or '')}\n",
        "| key | value | default | |\n| --- | --- | --- | --- |",
    ]
    for name, field in model.model_fields.items():
        words, _, _ = _words(field.annotation, list(field.metadata), places)
        lines.append(f"| `{field.alias or name}` | {words} | {_default(field)} | {_one_line(docs[name])} |")
    return "\n".join([*lines, ""])


def _docstrings(model: type[BaseModel]) -> dict[str, str]:
    """The docstring under each field."""
    tree = ast.parse(inspect.getsource(model))
    body = tree.body[0].body  # type: ignore[attr-defined]
    found = {}
    for field, after in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            found[field.target.id] = str(after.value.value)  # type: ignore[union-attr]
    return found


def _words(
    annotation: Any, metadata: list[Any], places: Mapping[type[BaseModel], str]
) -> tuple[str, type[BaseModel] | None, str]:
    """What a field takes, the model inside it if there is one, and what a path to that adds to the field's."""
    kind, metadata = _bare(annotation, metadata)
    origin = get_origin(kind)
    if origin is Literal:
        return " or ".join(f"`{option}`" for option in get_args(kind)), None, ""
    if origin is tuple:
        words, model, inner = _words(get_args(kind)[0], [], places)
        return f"list of {words}", model, f"[]{inner}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        words, model, inner = _words(get_args(kind)[1], [], places)
        return f"name: {words}", model, f".NAME{inner}"
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        anchor = re.sub(r"[^a-z0-9_-]", "", places.get(kind, "").lower())
        return f"[mapping](#{anchor})", kind, ""
    checks = {item.func for item in metadata if isinstance(item, BeforeValidator | AfterValidator)}
    bounds = ["above 0"] if above_zero in checks else []
    bounds += [
        form.format(f"{value:.15g}")
        for item in metadata
        for name, form in _BOUNDS.items()
        if (value := getattr(item, name, None)) not in (None, MOST)
    ]
    words = ", ".join([_WORDS.get(kind, "time with zone"), *dict.fromkeys(bounds)])
    return f"{words}, or `auto`" if auto in checks else words, None, ""


def _bare(kind: Any, metadata: list[Any]) -> tuple[Any, list[Any]]:
    """Without Annotated and None, what they said kept beside it."""
    while True:
        origin = get_origin(kind)
        if origin is Annotated:
            kind, *more = get_args(kind)
            for item in more:
                metadata.extend(item.metadata if isinstance(item, FieldInfo) else [item])
        elif origin in (Union, UnionType):
            kind = next(option for option in get_args(kind) if option is not NoneType)
        else:
            return kind, metadata


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if value is None:
        return "`auto`" if any(getattr(item, "func", None) is auto for item in field.metadata) else "none"
    if isinstance(value, BaseModel):
        return "as below"
    if value in ({}, ()):
        return "empty"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`[{', '.join(value)}]`"
    return f"`{value:.15g}`" if isinstance(value, float) else f"`{value}`"


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(document())
