"""Says what is wrong with a setting in words: what was given, what would be right, and what was probably meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from gateway.settings import Config
from gateway.yaml_tree import Path

_NOUNS: Final = {
    "kind": "a kind",
    "class": "a class",
    "isolation": "an isolation",
    "features": "a feature",
    "days": "a day",
    "log_level": "a log level",
    "limits_when_store_is_away": "a mode",
}
_BOUNDS: Final = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}
_WANTED: Final = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a smaller number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "timezone_aware": "a time with a zone, like 2027-01-31T00:00:00Z",
    "datetime_parsing": "a time, like 2027-01-31T00:00:00Z",
    "datetime_from_date_parsing": "a time, like 2027-01-31T00:00:00Z",
    "datetime_type": "a time, like 2027-01-31T00:00:00Z",
}
_MAPPINGS: Final = frozenset({"model_type", "model_attributes_type", "dict_type", "mapping_type"})
_LISTS: Final = frozenset({"tuple_type", "list_type"})
_USER_INFO = re.compile(r"//[^/@\s]*@")
_LIKE_A_KEY = re.compile(r"(?:sk-|wb_|AKIA|ghp_|xox|Bearer )\S{6,}", re.IGNORECASE)
_QUERY = re.compile(r"(://[^?\s]*)\?.*", re.DOTALL)
_SHOWN = 60
HIDDEN: Final = "***"
"""Stands for the value of a field that holds a secret."""


def location(loc: tuple[int | str, ...]) -> tuple[Path, bool]:
    """The path of an error in the file, and whether the fault is in the key itself."""
    of_key = bool(loc) and loc[-1] == "[key]"
    return (loc[:-1] if of_key else loc), of_key


def is_echo(error: ErrorDetails) -> bool:
    """Whether it only follows from errors inside: a list is called too short when its entries are bad."""
    given = error["input"]
    return error["type"] == "too_short" and isinstance(given, list) and len(given) >= error["ctx"]["min_length"]


def explain(error: ErrorDetails, path: Path, shown: str | None, *, of_key: bool) -> str:
    """What is wrong and what would be right. `shown` is the value as it may be shown."""
    kind, context = error["type"], error.get("ctx", {})
    value = "this" if shown is None else shown
    last = next((step for step in reversed(path) if isinstance(step, str)), "")
    if kind == "missing":
        return "is missing"
    if kind == "extra_forbidden":
        return f"unknown key; {choices(str(path[-1]), fields_at(path[:-1]))}"
    if kind == "literal_error":
        noun = _NOUNS.get(last, "allowed here")
        options = [str(option) for option in _options(path)]
        return f"{value} is not {noun}; {choices(str(error['input']) if shown != HIDDEN else '', options)}"
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        return f"must be {words} {context[name]:.15g}, not {value}"
    if kind in _MAPPINGS:
        fields = fields_at(path)
        return "must be a mapping" + (f" with keys among: {', '.join(fields)}" if fields else " of names")
    if kind in _LISTS:
        return "must be a list"
    if kind == "too_short":
        return f"must have at least {context['min_length']} entry"
    if kind == "string_too_short":
        return "is empty"
    if kind == "value_error":
        return _reason(str(context["error"]), path[-1] if of_key else error["input"], value, of_key=of_key)
    if kind in _WANTED:
        hint = "; write it in quotes" if kind == "string_type" and isinstance(error["input"], int | float) else ""
        return f"must be {_WANTED[kind]}, not {value}{hint}"
    return f"{value}: {error['msg'][:1].lower()}{error['msg'][1:]}"


def _reason(reason: str, given: object, value: str, *, of_key: bool) -> str:
    """What a validator of ours says, around the value that it says it of."""
    if of_key:
        return f"{given!r} {reason}"
    if value == HIDDEN or isinstance(given, Mapping):
        return reason
    return f"{reason}, not {value}" if reason.startswith("must be ") else f"{value} {reason}"


def choices(given: str, options: Iterable[str]) -> str:
    """`did you mean 'x'? one of: x, y, z`."""
    options = list(options)
    if not options:
        return "none can be given here"
    guess = suggestion(given, options)
    listed = f"one of: {', '.join(options)}"
    return f"did you mean {guess!r}? {listed}" if guess else listed


def suggestion(given: str, options: Iterable[str]) -> str | None:
    """The option that `given` was probably meant to be."""
    by_lower = {option.lower(): option for option in options}
    close = difflib.get_close_matches(given.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else None


def unknown(noun: str, given: str, options: Iterable[str]) -> str:
    """For a name that should be among `options`, which may be many."""
    options = sorted(options)
    if not options:
        return f"there is no {noun} {given!r}; none is defined"
    guess = suggestion(given, options)
    listed = ", ".join(options[:12]) + (f" and {len(options) - 12} more" if len(options) > 12 else "")
    return f"there is no {noun} {given!r}; " + (f"did you mean {guess!r}? " if guess else "") + f"defined: {listed}"


def dotted(path: Path) -> str:
    """`tenants.acme.keys[0].hash`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif re.fullmatch(r"[^\s.\[\]'\"]+", step):
            text += f".{step}" if text else step
        else:
            text += f"[{short(step)}]"
    return text


def short(value: Any) -> str:
    """A value for a message: one line, not long, nothing that looks like a credential."""
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        if _LIKE_A_KEY.search(value):
            return HIDDEN
        text = _QUERY.sub(r"\1?…", _USER_INFO.sub("//***@", value))
        return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")
    return str(value)[:_SHOWN]


def fields_at(path: Path) -> list[str]:
    """The keys that may stand in the mapping at `path`; none where they are free names."""
    kind = _type_at(path)
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return []
    return [field.alias or name for name, field in kind.model_fields.items()]


def _options(path: Path) -> tuple[Any, ...]:
    kind = _type_at(path)
    return get_args(kind) if get_origin(kind) is Literal else ()


def _type_at(path: Path) -> Any:
    kind: Any = Config
    for step in path:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            fields = {field.alias or name: field for name, field in kind.model_fields.items()}
            if step not in fields:
                return None
            kind = _bare(fields[str(step)].annotation)
        else:
            arguments = get_args(kind)
            if not arguments:
                return None
            kind = _bare(arguments[0] if isinstance(step, int) else arguments[-1])
    return kind


def _bare(kind: Any) -> Any:
    """Without Annotated and None."""
    while True:
        origin = get_origin(kind)
        if origin is Annotated:
            kind = get_args(kind)[0]
        elif origin in (Union, UnionType):
            kind = next(option for option in get_args(kind) if option is not NoneType)
        else:
            return kind
