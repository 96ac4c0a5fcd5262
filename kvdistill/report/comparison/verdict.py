"""The sentence of a comparison: how a side does beside the first, and what its trials cannot show."""

from __future__ import annotations

from collections.abc import Sequence

from kvdistill.report.comparison.lines import ComparedLine, Comparison, Key
from kvtrace.core.statistics import MAX_SPREAD, disagreements, spread

_JUDGED = ("bandwidth_bytes_per_s", "operations_per_s", "latency_mean_ns", "latency_p50_ns")
"""Figures that should repeat; tails are shown, not judged."""
_TAILS = tuple(
    f"{time}{part}_ns" for part in ("p99", "p95", "p50") for time in ("response_", "latency_", "first_token_", "")
)
"""What a verdict speaks of, the first that both sides know."""


def verdict(names: Sequence[str], lines: Sequence[ComparedLine], at: int) -> str:
    """Return how side `at` does beside the first: what its trials show, else what they do not."""
    a, b = names[0], names[at]
    told = _told(lines, at)
    if not any(line.op for line in told):
        hits = next((line.sides for line in lines if (line.tier, line.name) == ("", "hit_ratio")), None)
        if hits is not None and hits[0].median is not None and hits[at].median is not None:
            # Simulated, so exact: it needs no trials.
            return f"{b} hits {hits[at].median:.2%} of lookups, {a} {hits[0].median:.2%}"
    shown = [line for line in told if line.sides[at].ratio.differs]
    unsure = [_range(line, at) for line in told if line.sides[at].ratio.differs is False]
    single = [line for line in told if line.sides[at].ratio.differs is None]
    parts = _clauses(shown, a, b, at)
    if unsure:
        whose = "" if shown else f"of {b} from {a} "
        parts.append(f"no difference {whose}that these trials can show: {', '.join(unsure)}")
    if single:
        parts += [f"{'; '.join(_clauses(single, a, b, at))}: by trials too few to show a difference"]
    if parts:
        return "; ".join(parts)
    return f"{b} against {a}: nothing that both measured says which is faster"


def _told(lines: Sequence[ComparedLine], at: int) -> list[ComparedLine]:
    """Return the lines that a verdict is made of: the slowest tier's tail of reads and writes, and bandwidth."""
    known = [line for line in lines if line.sides[at].ratio.value is not None]
    found = []
    for op in ("read", "write", ""):
        for name in _TAILS:
            tails = [line for line in known if (line.op, line.name) == (op, name) and (op or not line.tier)]
            if tails:
                found.append(tails[-1])
                break
    if any(line.name.startswith("response") for line in found):
        # An open loop moves what the trace asks for, on any drive that keeps pace.
        return found
    tiers = {line.tier for line in found}
    return found + [line for line in known if line.name == "bandwidth_bytes_per_s" and line.tier in tiers]


def _clauses(lines: Sequence[ComparedLine], a: str, b: str, at: int) -> list[str]:
    """Return `b reads 18 % faster at p99 [12, 23] than a`: its p99 is so much shorter; and how its bandwidths do."""
    times = [
        f"{_what(line)} {_much(line, at)} at {_percentile(line)}{_sure(line, at)}" for line in lines if _is_time(line)
    ]
    rates = [f"{line.op} bandwidth {_much(line, at)}{_sure(line, at)}" for line in lines if not _is_time(line)]
    clauses = [f"{b} {' and '.join(times)} than {a}"] if times else []
    if rates:
        clauses.append(f"{'its' if times else f'{b} has a'} {' and '.join(rates)}{'' if times else f' than {a}'}")
    return clauses


def _much(line: ComparedLine, at: int) -> str:
    value = line.sides[at].ratio.value or 1.0
    words = ("faster", "slower") if _is_time(line) else ("lower", "higher")
    return f"{abs(value - 1) * 100:.0f} % {words[value >= 1]}"


def _sure(line: ComparedLine, at: int) -> str:
    """Return the interval, counted as `_much` counts."""
    found = line.sides[at].ratio
    if found.low is None or found.high is None:
        return ""
    ends = [1 - found.high, 1 - found.low] if (found.value or 1) < 1 else [found.low - 1, found.high - 1]
    return f" [{ends[0] * 100:.0f}, {ends[1] * 100:.0f}]"


def _range(line: ComparedLine, at: int) -> str:
    found, words = line.sides[at].ratio, ("faster", "slower") if _is_time(line) else ("lower", "higher")
    low, high = (1.0 if value is None else value for value in (found.low, found.high))
    what = _percentile(line) if _is_time(line) else "bandwidth"
    return (
        f"{line.op or 'first token'} {what} ({(1 - low) * 100:.0f} % {words[0]} to {(high - 1) * 100:.0f} % {words[1]})"
    )


def _what(line: ComparedLine) -> str:
    return f"{line.op}s" if line.op else "brings first tokens"


def _is_time(line: ComparedLine) -> bool:
    return line.name.endswith("_ns")


def _percentile(line: ComparedLine) -> str:
    return next(part for part in line.name.split("_") if part[0] == "p" and part[1:].isdigit())


def spoiled(names: Sequence[str], found: Sequence[dict[Key, list[float | None]]]) -> str:
    """Return which sides are to be doubted, for the end of the verdict."""
    spoiling = [name for name, own in zip(names, found, strict=True) if disagreements(spreads(own))]
    return f"; TRIALS DISAGREE in {' and '.join(spoiling)}" if spoiling else ""


def spreads(found: dict[Key, list[float | None]]) -> list[tuple[str, float]]:
    """Return the name and the spread of each figure that should repeat."""
    judged = ((f"{tier} {op} {name}", spread(values)) for (tier, op, name), values in found.items() if name in _JUDGED)
    return [(name, share) for name, share in judged if share is not None]


def disagreeing(compared: Comparison) -> list[ComparedLine]:
    """Return the lines of figures that should repeat, and do not on one side or more."""
    return [
        line
        for line in compared.lines
        if line.name in _JUDGED and any((spread(side.trials) or 0) > MAX_SPREAD for side in line.sides)
    ]
