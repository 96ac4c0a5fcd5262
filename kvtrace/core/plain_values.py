"""Convert plain values of a command line without Pydantic.

Typer converts every value by Pydantic, and to import that takes longer than a small command takes.
`convert_plainly` makes parameters convert texts, numbers, paths and names of an enumeration itself.
All other values, and invalid ones, still go to Typer, which reports what is wrong with them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path
from typing import Protocol, get_args, get_origin

import typer
from typer.core import TyperArgument, TyperOption
from typer.models import ParameterInfo

Parameter = TyperOption | TyperArgument
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_NUMBER = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?")


class _NotPlainError(Exception):
    """Typer has to convert the value."""


class _TyperConversion(Protocol):
    """How Typer converts the values of a parameter."""

    def coerce(self, value: object, param: Parameter, ctx: typer.Context) -> object:
        """Return `value` in the type of `param`."""


def convert_plainly(parameters: Iterable[object]) -> None:
    """Make the options and arguments among `parameters` convert plain values themselves."""
    for parameter in parameters:
        if isinstance(parameter, Parameter) and _CONVERSION not in vars(parameter):
            conversion = _Conversion(parameter.get_runtime_param)
            vars(parameter)[_CONVERSION] = conversion.itself


_CONVERSION = "get_runtime_param"
"""The method that Typer asks for a parameter's conversion; an attribute of this name hides it."""


class _Conversion:
    """The conversion of the values of one parameter, in place of Typer's."""

    def __init__(self, make_typer_conversion: Callable[[], _TyperConversion]) -> None:
        self._make_typer_conversion = make_typer_conversion

    def itself(self) -> _Conversion:
        """Return this conversion."""
        return self

    def coerce(self, value: object, param: Parameter, ctx: typer.Context) -> object:
        """Return `value` in the type of `param`; UsageError if it is not of that type."""
        try:
            return _convert(value, param)
        except _NotPlainError:
            return self._make_typer_conversion().coerce(value, param=param, ctx=ctx)


def _convert(value: object, parameter: Parameter) -> object:
    """Return `value`, or each value of a list, in the type of `parameter`."""
    kind = parameter.type_descriptor.annotation
    settings = parameter.type_descriptor.parameter_info
    if settings.parser is not None or settings.clamp:
        raise _NotPlainError
    is_multiple = parameter.multiple or parameter.nargs == -1
    if value is None:
        return () if is_multiple else None
    if is_multiple:
        is_list = get_origin(kind) is list  # type: ignore[comparison-overlap]
        if not is_list or not isinstance(value, list | tuple):
            raise _NotPlainError
        return [_convert_one(item, get_args(kind)[0], settings) for item in value]
    return _convert_one(value, kind, settings)


def _convert_one(value: object, kind: object, settings: ParameterInfo) -> object:
    """Return `value` as a `kind` within the limits of `settings`."""
    if kind is str and isinstance(value, str):
        return value
    if kind is int:
        return _convert_number(value, int, settings)
    if kind is float:
        return _convert_number(value, float, settings)
    if kind is Path:
        return _convert_path(value, settings)
    if isinstance(kind, type) and issubclass(kind, Enum):
        for member in kind:
            if value is member or value == str(member.value):
                return member
    raise _NotPlainError


def _convert_number(value: object, kind: type[int | float], settings: ParameterInfo) -> int | float:
    if isinstance(value, str):
        pattern = _INTEGER if kind is int else _NUMBER
        if not pattern.fullmatch(value):
            raise _NotPlainError
    elif not isinstance(value, kind | int) or isinstance(value, bool):
        raise _NotPlainError
    number = kind(value)
    is_too_small = settings.min is not None and number < settings.min
    if is_too_small or (settings.max is not None and number > settings.max):
        raise _NotPlainError
    return number


def _convert_path(value: object, settings: ParameterInfo) -> Path:
    if not isinstance(value, str | Path) or settings.exists or settings.resolve_path:
        raise _NotPlainError
    if settings.allow_dash or not (settings.file_okay and settings.dir_okay):
        raise _NotPlainError
    # The system takes no path with a null character.
    if "\0" in str(value):
        raise _NotPlainError
    if os.path.lexists(value):
        is_readable = not settings.readable or os.access(value, os.R_OK)
        is_writable = not settings.writable or os.access(value, os.W_OK)
        if not is_readable or not is_writable:
            raise _NotPlainError
    return Path(value)
