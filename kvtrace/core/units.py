"""The only place where units are converted.

GB is 10^9 bytes, GiB is 2^30 bytes, times are nanoseconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from kvtrace.core.errors import ConfigError
from kvtrace.core.parameters import named

BYTES: Final = (
    {"": 1, "b": 1}
    | {prefix: 1024**n for n, prefix in enumerate("kmgt", 1)}
    | {f"{prefix}ib": 1024**n for n, prefix in enumerate("kmgtp", 1)}
    | {f"{prefix}b": 1000**n for n, prefix in enumerate("kmgtp", 1)}
)
DURATIONS_NS: Final = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "min": 60 * 10**9,
    "h": 3_600 * 10**9,
    "d": 86_400 * 10**9,
}
NS_PER_S: Final = 10**9
US_PER_MS: Final = 1000
NS_PER_US: Final = 1000
NS_PER_MS: Final = 10**6
DAYS_PER_YEAR: Final = 365
INT64_MAX: Final = 2**63 - 1
_RATE = re.compile(r"\s*([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*(?:/\s*([A-Za-zµ]+))?\s*")
_UNPRINTABLE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_QUANTITY = re.compile(r"\s*([0-9]{1,40}(?:\.[0-9]{1,40})?)\s*([A-Za-zµ]*)\s*")


def _parse(text: str, units: dict[str, int], what: str, example: str, default_unit: str) -> int:
    if (match := _QUANTITY.fullmatch(text)) is None:
        raise ConfigError(f"{text!r} is not {what}; write for example {example}")
    number, unit = match.groups()
    scale = units.get((unit or default_unit).lower())
    if scale is None:
        known = ", ".join(name for name in units if name)
        raise ConfigError(f"unknown unit {unit!r} in {text!r}; use one of {known}")
    whole, _, fraction = number.partition(".")
    # Integer arithmetic: 0.1 of a unit must come out the same everywhere.
    value = int(whole) * scale + (int(fraction) * scale // 10 ** len(fraction) if fraction else 0)
    if value > INT64_MAX:
        raise ConfigError(f"{text!r} is too large; at most {INT64_MAX} fits a trace")
    return value


_LEAST_BARE_BYTES = 4096
"""A page: smaller sizes need a unit."""


def parse_bytes(text: str) -> int:
    """Return the bytes that `text` names, such as `64GiB`, `2TB`, `4k` (binary) or `4096`.

    ConfigError for a small number without a unit: 8 was hardly meant in bytes.
    """
    value = _parse(text, BYTES, "a size", "64GiB, 2TB or 4096", "b")
    if 0 < value < _LEAST_BARE_BYTES and text.strip()[-1].isdigit():
        number = text.strip()
        raise ConfigError(f"{number} has no unit; write {number}B, {number}KiB or {number}GiB")
    return value


def parse_duration_ns(text: str) -> int:
    """Return the nanoseconds that `text` names, such as `60s`, `5m`, `250ms`.

    A bare number is seconds.
    """
    return _parse(text, DURATIONS_NS, "a duration", "60s, 5m or 250ms", "s")


def parse_rate_per_s(text: str) -> float:
    """Return the rate per second that `text` names, such as `20/s`, `90/min`, `0.5`.

    A bare number is per second.
    """
    if (match := _RATE.fullmatch(text)) is None:
        raise ConfigError(f"{text!r} is not a rate; write for example 20/s, 90/min or 0.5")
    number, unit = match.groups()
    period_ns = DURATIONS_NS.get((unit or "s").lower())
    if period_ns is None:
        raise ConfigError(
            f"unknown unit {unit!r} in {text!r}; use one of {', '.join(DURATIONS_NS)}"
        )
    return float(number) * NS_PER_S / period_ns


def per_second(count: float | None, time_ns: float | None) -> float | None:
    """Return the rate of so many in a time.

    Null if one of them is not known, or none has passed.
    """
    return (
        count * NS_PER_S / time_ns
        if count is not None and time_ns is not None and time_ns > 0
        else None
    )


def positive(parameter: str, parse: Callable[[str], int]) -> Callable[[str], int]:
    """Return `parse` for a value of `parameter` that must be above 0; ConfigError names it."""

    def parsed(text: str) -> int:
        try:
            value = parse(text)
        except ConfigError as error:
            raise ConfigError(f"{named(parameter)}: {error}") from None
        if value <= 0:
            raise ConfigError(f"{named(parameter, text)}: must be > 0")
        return value

    return parsed


def format_bytes(count: float | None) -> str:
    """Return `count` bytes in decimal units, as rates are and drives are sold, three significant
    digits.

    Null is a dash.
    """
    return _scaled(count, ("B", "kB", "MB", "GB", "TB", "PB"), 1000)


def format_io_size(count: int) -> str:
    """Return the length of an I/O, a block or a page in binary units, as fio's bs= has them.

    4 KiB, 1 MiB.
    """
    return _scaled(count, ("B", "KiB", "MiB", "GiB"), 1024).replace(".00 ", " ").replace(".0 ", " ")


def _scaled(value: float | None, units: tuple[str, ...], step: int) -> str:
    """Return `value` in the first of `units`, each `step` times the one before, in which it is less
    than `step`.
    """
    if value is None:
        return "-"
    scaled, last = float(value), units[-1]
    for unit in units:
        if unit == last or abs(round(scaled, _decimals(scaled))) < step:
            break
        scaled /= step
    # Bytes are whole.
    return f"{scaled:.{0 if unit == 'B' else _decimals(scaled)}f} {unit}"


def format_duration(ns: float | None) -> str:
    """Return `ns` nanoseconds in the unit that reads best; null as a dash."""
    if ns is None:
        return "-"
    if ns == 0:
        return "0 s"
    for unit, scale in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if abs(ns) >= 0.9995 * scale:  # 999.5 of the unit below and more would round to 1000
            value = ns / scale
            return f"{value:.{_decimals(value)}f} {unit}"
    return f"{ns:.0f} ns"


def format_years(years: float) -> str:
    """Return how long a drive lasts: in years, below one in days or hours."""
    for value, unit in ((years, "years"), (years * DAYS_PER_YEAR, "days")):
        if value >= 1:
            return f"{value:,.{_decimals(value)}f} {unit}"
    return f"{years * DAYS_PER_YEAR * 24:.2g} hours"


def format_rate(bytes_per_s: float | None) -> str:
    """Return a bandwidth in decimal units, as drives are sold; null as a dash."""
    return _scaled(bytes_per_s, ("B/s", "kB/s", "MB/s", "GB/s"), 1000)


def format_count(count: float | None) -> str:
    """Return a whole number with thousands separated; null as a dash."""
    return "-" if count is None else f"{count:,.0f}"


def counted(count: float, what: str) -> str:
    """Return so many of `what`: 1 trial, 3,000 trials."""
    return f"{count:,.0f} {what}{'' if count == 1 else 's'}"


def percent(share: float) -> str:
    """Return a share of 1 as a percentage that never rounds to none or all."""
    if 0 < share < 0.001:  # noqa: PLR2004 - what one decimal would show as 0
        return "< 0.1 %"
    if 0.999 < share < 1:  # noqa: PLR2004 - what one decimal would show as 100
        return "> 99.9 %"
    return f"{share * 100:.1f} %"


def _decimals(value: float) -> int:
    return 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0  # noqa: PLR2004 - three digits, as rounded


def printable(text: str) -> str:
    r"""Return `text` with what a terminal would act on, or turn around, as its code.

    Files name things as they like.

    >>> print(printable("a\x1b[2Jb"))
    a\u001b[2Jb
    """
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


_SHARE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(%?)\s*")
_PRICE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*/\s*([A-Za-z]+)\s*")


def parse_share(text: str, parameter: str) -> float:
    """Return the share that `text` gives, such as 80% or 0.8, of any size.

    ConfigError, naming `parameter`, if it is no share.
    """
    match = _SHARE.fullmatch(text)
    if match is None:
        raise ConfigError(f"{named(parameter, text)}: write a share such as 80% or 0.8")
    return float(match[1]) / (100 if match[2] else 1)


def price_of_byte(text: str, where: str, example: str = "4/GiB or 0.1/GiB") -> float:
    """Return the price of a byte that `text` says, such as 0.1/GiB.

    ConfigError, naming `where`, if it says none.
    """
    match = _PRICE.fullmatch(text)
    if match is None:
        raise ConfigError(f"{where}: write for example {example}")
    return float(match[1]) / parse_bytes(f"1{match[2]}")
