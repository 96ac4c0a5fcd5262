from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace.core.config import as_setting, check_units
from kvtrace.core.errors import ConfigError
from kvtrace.core.units import (
    INT64_MAX,
    counted,
    format_bytes,
    format_count,
    format_duration,
    format_io_size,
    format_rate,
    format_years,
    parse_bytes,
    parse_duration_ns,
    percent_beside,
)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("4096B", 4096), ("4096", 4096), ("0", 0), ("1B", 1), ("4k", 4096), ("4K", 4096), ("4KiB", 4096), ("4kB", 4000),
        ("64GiB", 64 << 30), ("64g", 64 << 30), ("2TB", 2 * 10**12), ("2TiB", 2 << 40), ("1.5 MiB", 1_572_864),
        (" 8 gib ", 8 << 30), ("0.1GB", 100_000_000), ("0.3k", 307), ("9223372036854775807B", INT64_MAX),
    ],
)  # fmt: skip
def test_sizes(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("60", 60 * 10**9), ("60s", 60 * 10**9), ("5m", 300 * 10**9), ("5min", 300 * 10**9), ("250ms", 250_000_000),
        ("2us", 2000), ("2µs", 2000), ("7ns", 7), ("1h", 3600 * 10**9), ("1d", 86_400 * 10**9), ("0.1s", 100_000_000),
        ("1.000000001s", 1_000_000_001), ("0.0000000001s", 0),
    ],
)  # fmt: skip
def test_durations(text, ns):
    assert parse_duration_ns(text) == ns


@pytest.mark.parametrize(
    "text", ["", " ", "-1", "+1", "1e3", ".5", "5.", "1,000", "1 2", "GiB", "٣", "9" * 5000, "nan"]
)
def test_what_is_no_quantity(text):
    with pytest.raises(ConfigError, match=re.escape(f"'{text[:50]}")):
        parse_bytes(text)
    with pytest.raises(ConfigError, match=re.escape(f"'{text[:50]}")):
        parse_duration_ns(text)


def test_units_we_do_not_know_are_named():
    with pytest.raises(ConfigError, match=r"unit 'XB'.*'1XB'"):
        parse_bytes("1XB")
    with pytest.raises(ConfigError, match=r"unit 'GiB'.*'1GiB'"):
        parse_duration_ns("1GiB")


def test_what_does_not_fit_64_bits_is_refused():
    for text in ("9223372036854775808", "8192PiB", "99999999999999999999TB"):
        with pytest.raises(ConfigError, match="too large"):
            parse_bytes(text)
    with pytest.raises(ConfigError, match="too large"):
        parse_duration_ns("106752d")


@given(st.integers(0, 2**40))
def test_gibibytes_and_gigabytes_are_told_apart(count):
    assert parse_bytes(f"{count}B") == count
    if count < 2**30:
        assert parse_bytes(f"{count}GiB") == count << 30
        assert parse_bytes(f"{count}GB") == count * 10**9


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "-"), (0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (1536, "1.54 kB"), (64 << 30, "68.7 GB"),
        (10**12, "1.00 TB"), (500 << 30, "537 GB"), (5000 * 10**15, "5000 PB"), (9_996, "10.0 kB"), (-2048, "-2.05 kB"),
    ],
)  # fmt: skip
def test_format_bytes(count, text):
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (None, "-"), (0, "0 s"), (1, "1 ns"), (999, "999 ns"), (1000, "1.00 µs"), (12_345_678, "12.3 ms"),
        (10**9, "1.00 s"), (3600 * 10**9, "3600 s"), (999_499, "999 µs"), (999_700, "1.00 ms"), (9_996_000, "10.0 ms"),
    ],
)  # fmt: skip
def test_format_duration(ns, text):
    assert format_duration(ns) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (None, "-"),
        (0, "0.00 B/s"),
        (999, "999 B/s"),
        (1000, "1.00 kB/s"),
        (2.5e9, "2.50 GB/s"),
        (5e12, "5000 GB/s"),
    ],
)
def test_format_rate(rate, text):
    assert format_rate(rate) == text


def test_one_is_singular():
    assert [counted(n, "request") for n in (0, 1.0, 12031)] == [
        "0 requests",
        "1 request",
        "12,031 requests",
    ]


def test_format_count():
    assert [format_count(n) for n in (None, 0, 12031, 288_500.0)] == ["-", "0", "12,031", "288,500"]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (512, "512 B"),
        (4096, "4 KiB"),
        (20480, "20 KiB"),
        (1536, "1.50 KiB"),
        (262144, "256 KiB"),
        (4 << 20, "4 MiB"),
    ],
)
def test_lengths_of_ios_are_said_as_fio_has_them(count: int, text: str) -> None:
    assert format_io_size(count) == text


@pytest.mark.parametrize(
    ("years", "expected"),
    [
        (4.25, "4.25 years"),
        (1.0, "1.00 years"),
        (0.013, "4.75 days"),
        (0.5, "182 days"),
        (0.001, "8.8 hours"),
    ],
)
def test_a_short_life_is_said_in_days(years, expected):
    assert format_years(years) == expected


def test_a_size_without_a_unit_is_refused():
    with pytest.raises(ConfigError, match="8 has no unit"):
        parse_bytes("8")
    with pytest.raises(ConfigError, match="write 8B"):
        check_units(["tiers.nvme.capacity=1TB", "tiers.cpu.capacity=8"])
    assert check_units(["tiers.gpu.capacity=0", "tiers.nvme.capacity=540672", "chunk_tokens=16"])
    assert as_setting("tiers.cpu.capacity", 8) == "tiers.cpu.capacity=8B"


@pytest.mark.parametrize(
    ("share", "limit", "text"),
    [
        (0.69974, 0.7, "69.97 %"),
        (0.7, 0.7, "70.0 %"),
        (0.70001, 0.7, "70.0 %"),
        (0.6, 0.7, "60.0 %"),
        (0.69974, None, "70.0 %"),
        (0.989996, 0.99, "98.9996 %"),
    ],
)
def test_a_share_is_shown_on_its_side_of_a_limit(
    share: float, limit: float | None, text: str
) -> None:
    assert percent_beside(share, limit) == text
