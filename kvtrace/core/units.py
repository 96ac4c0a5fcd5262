"""Conversion of units from and to text.

GB is 10^9 bytes, GiB is 2^30 bytes, times are nanoseconds. No other module converts units.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from kvtrace.core.errors import ConfigError
from kvtrace.core.parameters import named

BYTES: Final = (
    {"": 1, "b": 1}
    | {prefix: 1024**power for power, prefix in enumerate("kmgt", 1)}
    | {f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgtp", 1)}
    | {f"{prefix}b": 1000**power for power, prefix in enumerate("kmgtp", 1)}
)
"""Bytes in each unit, in lower case; a bare prefix, as in `4k`, is binary."""
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
BYTES_PER_MB: Final = 10**6
BYTES_PER_GB: Final = 10**9
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


def _parse_quantity(
    text: str, units: dict[str, int], quantity: str, example: str, default_unit: str
) -> int:
    """Return the number in `text` times its unit; a bare number is in `default_unit`.

    `quantity`, such as "a size", and `example` are for the error message.
    """
    if (match := _QUANTITY.fullmatch(text)) is None:
        raise ConfigError(f"{text!r} is not {quantity}; write for example {example}")
    number, unit = match.groups()
    scale = units.get((unit or default_unit).lower())
    if scale is None:
        unit_names = ", ".join(name for name in units if name)
        raise ConfigError(f"unknown unit {unit!r} in {text!r}; use one of {unit_names}")
    integer_digits, _, fraction_digits = number.partition(".")
    # Integer arithmetic, so that a fraction such as 0.1 is equal on all machines.
    value = int(integer_digits) * scale
    if fraction_digits:
        value += int(fraction_digits) * scale // 10 ** len(fraction_digits)
    if value > INT64_MAX:
        raise ConfigError(f"{text!r} is too large; at most {INT64_MAX} fits a trace")
    return value


_MIN_BARE_BYTES = 4096
"""Smallest size (a page) that may be written without a unit."""


def parse_bytes(text: str) -> int:
    """Return the size `text` in bytes, such as `64GiB`, `2TB`, `4k` (binary) or `4096`.

    ConfigError for a small number without a unit: 8 is probably not meant in bytes.
    """
    value = _parse_quantity(text, BYTES, "a size", "64GiB, 2TB or 4096", "b")
    if 0 < value < _MIN_BARE_BYTES and text.strip()[-1].isdigit():
        number = text.strip()
        raise ConfigError(f"{number} has no unit; write {number}B, {number}KiB or {number}GiB")
    return value


def parse_duration_ns(text: str) -> int:
    """Return the duration `text` in nanoseconds, such as `60s`, `5m`, `250ms`.

    A bare number is in seconds.
    """
    return _parse_quantity(text, DURATIONS_NS, "a duration", "60s, 5m or 250ms", "s")


def parse_rate_per_s(text: str) -> float:
    """Return the rate `text` per second, such as `20/s`, `90/min`, `0.5`.

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
    """Return the rate of `count` in `time_ns` per second.

    Null if count or time is null, or if no time has passed.
    """
    if count is None or time_ns is None or time_ns <= 0:
        return None
    return count * NS_PER_S / time_ns


def positive(parameter: str, parse: Callable[[str], int]) -> Callable[[str], int]:
    """Return a parser that calls `parse` and refuses values that are not above 0.

    Its ConfigError names `parameter`.
    """

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
    """Return `count` bytes with three significant digits; null as a dash.

    Units are decimal, as in rates and in the nominal capacity of drives.
    """
    return _scaled(count, ("B", "kB", "MB", "GB", "TB", "PB"), 1000)


def format_io_size(count: int) -> str:
    """Return the length of an I/O, a block or a page, such as 4 KiB or 1 MiB.

    Units are binary, as in fio's bs=.
    """
    return _scaled(count, ("B", "KiB", "MiB", "GiB"), 1024).replace(".00 ", " ").replace(".0 ", " ")


def _scaled(value: float | None, units: tuple[str, ...], step: int) -> str:
    """Return `value` in the smallest of `units` that needs fewer than `step` of it; null as a dash.

    Each unit is `step` times the one before. The largest unit takes any value.
    """
    if value is None:
        return "-"
    scaled = float(value)
    for unit in units:
        if unit == units[-1] or abs(round(scaled, _decimals(scaled))) < step:
            break
        scaled /= step
    # Bytes have no decimals.
    decimals = 0 if unit == "B" else _decimals(scaled)
    return f"{scaled:.{decimals}f} {unit}"


def format_duration(ns: float | None) -> str:
    """Return `ns` nanoseconds in the largest unit that they fill; null as a dash."""
    if ns is None:
        return "-"
    if ns == 0:
        return "0 s"
    for unit, scale in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        # 999.5 and more of the unit below would round to 1000.
        if abs(ns) >= 0.9995 * scale:
            value = ns / scale
            return f"{value:.{_decimals(value)}f} {unit}"
    return f"{ns:.0f} ns"


def format_years(years: float) -> str:
    """Return the life of a drive in years, or, if shorter than one, in days or hours."""
    for value, unit in ((years, "years"), (years * DAYS_PER_YEAR, "days")):
        if value >= 1:
            return f"{value:,.{_decimals(value)}f} {unit}"
    return f"{years * DAYS_PER_YEAR * 24:.2g} hours"


def format_rate(bytes_per_s: float | None) -> str:
    """Return a bandwidth in decimal units, as data sheets of drives have it; null as a dash."""
    return _scaled(bytes_per_s, ("B/s", "kB/s", "MB/s", "GB/s"), 1000)


def format_count(count: float | None) -> str:
    """Return a whole number with thousands separated; null as a dash."""
    return "-" if count is None else f"{count:,.0f}"


def counted(count: float, noun: str) -> str:
    """Return `count` with its noun in the singular or plural: 1 trial, 3,000 trials."""
    return f"{count:,.0f} {noun}{'' if count == 1 else 's'}"


def percent(share: float) -> str:
    """Return a share of 1 as a percentage; only 0 is shown as 0 %, and only 1 as 100 %."""
    if 0 < share < 0.001:  # noqa: PLR2004 - one decimal would show 0
        return "< 0.1 %"
    if 0.999 < share < 1:  # noqa: PLR2004 - one decimal would show 100
        return "> 99.9 %"
    return f"{share * 100:.1f} %"


def percent_beside(share: float, limit: float | None) -> str:
    """Return a share of 1 as a percentage on the side of `limit` on which it is.

    It has one decimal, or as many as it takes, at most 4: beside 70 %, 69.97 is not shown as 70.0.

    >>> percent_beside(0.69974, 0.7), percent_beside(0.6934, 0.7)
    ('69.97 %', '69.3 %')
    """
    percentage = 100 * share
    text = f"{percentage:.1f}"
    for decimals in range(2, 5):
        if limit is None or (share < limit) == (float(text) < 100 * limit):
            break
        text = f"{percentage:.{decimals}f}"
    return f"{text} %"


def _decimals(value: float) -> int:
    """Return the number of decimals that gives `value` three significant digits."""
    # Limits that take the rounding into account: 9.995 becomes 10.0.
    if abs(value) < 9.995:  # noqa: PLR2004
        return 2
    return 1 if abs(value) < 99.95 else 0  # noqa: PLR2004


def printable(text: str) -> str:
    r"""Return `text` with control characters and marks of text direction as their codes.

    Names come from files, and a terminal would obey such characters.

    >>> print(printable("a\x1b[2Jb"))
    a\u001b[2Jb
    """
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


_SHARE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(%?)\s*")
_PRICE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*/\s*([A-Za-z]+)\s*")


def parse_share(text: str, parameter: str) -> float:
    """Return the share `text`, such as 80% or 0.8; it may exceed 1.

    ConfigError, which names `parameter`, if `text` is not a share.
    """
    match = _SHARE.fullmatch(text)
    if match is None:
        raise ConfigError(f"{named(parameter, text)}: write a share such as 80% or 0.8")
    return float(match[1]) / (100 if match[2] else 1)


def format_prices(byte_prices: Mapping[str, float]) -> str:
    """Return prices of a byte by name as text, which is the unit of a sum of them.

    >>> format_prices({"DRAM": 4 / 2**30, "NVMe": 0.1 / 2**30})
    '4 per GiB of DRAM and 0.1 per GiB of NVMe'
    """
    return " and ".join(
        f"{price * 2**30:.4g} per GiB of {name}" for name, price in byte_prices.items()
    )


def price_of_byte(text: str, where: str, example: str = "4/GiB or 0.1/GiB") -> float:
    """Return the price of one byte for a price such as 0.1/GiB.

    ConfigError, which begins with `where`, if `text` is not a price.
    """
    match = _PRICE.fullmatch(text)
    if match is None:
        raise ConfigError(f"{where}: write for example {example}")
    return float(match[1]) / parse_bytes(f"1{match[2]}")
