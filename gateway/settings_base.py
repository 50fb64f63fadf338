"""What every settings model shares: frozen, closed to unknown keys, with plain numbers, names and secrets.

Field names carry the unit (`_ms`, `_s`, `_tokens`, `usd_…`), so values are plain numbers everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    SerializerFunctionWrapHandler,
    WrapSerializer,
)

_T = TypeVar("_T")

NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
MODEL_PATTERN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}")


class Settings(BaseModel):
    """A part of the config file. Frozen: a change of settings is a new config, never an edited one."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)


def _not_a_flag(value: Any) -> Any:
    """`true` would otherwise pass as the number 1."""
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


def _name(value: str) -> str:
    if not NAME_PATTERN.fullmatch(value):
        raise ValueError("is not a name: letters, digits, '.', '_' and '-', at most 63, a letter or digit first")
    return value


def _model_name(value: str) -> str:
    if not MODEL_PATTERN.fullmatch(value):
        raise ValueError("is not a model name: letters, digits and . _ : / @ + -, at most 128, a letter or digit first")
    return value


def above_zero(value: float) -> float:
    """A limit of 0 is a way to lock a door that nobody will look for there."""
    if value <= 0:
        raise ValueError("would refuse every request; leave it out for no limit")
    return value


def _secret(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    if not text.strip():
        raise ValueError("is empty")
    if text != text.strip() or not text.isascii() or not text.isprintable():
        raise ValueError("must be printable ASCII without spaces around it (it travels in a header)")
    return value


def auto(value: Any) -> Any:
    """`auto` is written for "find out": the core knows it as None, which is unknown and never zero."""
    return None if value == "auto" else value


def _frozen(value: Mapping[str, _T]) -> Mapping[str, _T]:
    return MappingProxyType(dict(value))


def _as_dict(value: Mapping[str, _T], dump: SerializerFunctionWrapHandler) -> Any:
    return dump(dict(value))


_Frozen = AfterValidator(_frozen)
_AsDict = WrapSerializer(_as_dict)
MOST: Final = 10**12
"""Bound of plain numbers: far beyond any use, and far inside what whole-number arithmetic of limits takes exactly."""
MOST_USD: Final = 10**7
"""Bound of money limits, which are kept in micro-dollars."""

Number = BeforeValidator(_not_a_flag)
Count = Annotated[int, Number, Field(gt=0, le=MOST)]
CountOrZero = Annotated[int, Number, Field(ge=0, le=MOST)]
Positive = Annotated[float, Number, Field(gt=0, le=MOST)]
PositiveOrZero = Annotated[float, Number, Field(ge=0, le=MOST)]
Share = Annotated[float, Number, Field(ge=0, le=1)]
LimitCount = Annotated[int, Number, Field(le=MOST), AfterValidator(above_zero)]
LimitAmount = Annotated[float, Number, Field(le=MOST_USD), AfterValidator(above_zero)]
Milliseconds = Annotated[int, Number, Field(gt=0, le=86_400_000)]
Port = Annotated[int, Number, Field(ge=0, le=65_535)]
AutoCount = Annotated[Count | None, BeforeValidator(auto)]
Name = Annotated[str, AfterValidator(_name)]
ModelName = Annotated[str, AfterValidator(_model_name)]
Secret = Annotated[SecretStr, AfterValidator(_secret)]
NameTable = Annotated[Mapping[Name, _T], _Frozen, _AsDict]
ModelTable = Annotated[Mapping[ModelName, _T], _Frozen, _AsDict]
