"""The table of a study: a row a configuration, with what it was asked for and what came of it.

Which columns it has depends on the study: those with a star stand for one of each knob, or of each tier.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from typing import Final

from kvtrace.core.schema import MOST, Column, Table

# Laid out as a table: a column a line.
# fmt: off
STUDY: Final = Table("study", "What came of each configuration of a study, one row a configuration, in the order of "
                     "the grid. Every figure is simulated.", (
    Column("configuration", "int64", "index", "which configuration of the study, from 0"),
    Column("knob.*", "string", "as given",
           "what it was asked for, a column an option or knob of the study; int64 or float64 where all its values are "
           "such numbers; null where a configuration has none", nullable=True),
    Column("command", "string", "name", "the command that simulates it alone"),
    Column("error", "string", "name", "why it failed; null if it did not: then all its figures are", nullable=True),
    Column("requests", "int64", "count", "requests that were looked up", nullable=True),
    Column("lookups", "int64", "count", "objects that they looked up", nullable=True),
    Column("hit_ratio", "float64", "share of 1", "look-ups that hit in any tier; null without look-ups", nullable=True),
    Column("input_tokens", "int64", "tokens", "tokens of their prompts", nullable=True),
    Column("recomputed_tokens", "int64", "tokens", "prompt tokens that no tier had, and that were computed",
           nullable=True),
    Column("output_tokens", "int64", "tokens", "tokens generated", nullable=True),
    Column("span_ns", "int64", "ns", "virtual time that rates refer to", nullable=True),
    *(Column(f"first_token_{name}_ns", "int64", "ns", f"{words} of the modelled times to the first token; null if "
             "nothing takes time, or too few requests tell", nullable=True)
      for name, words in (("p50", "median"), ("p95", "p95"), ("p99", "p99"))),
    Column("imbalance", "float64", "ratio", "requests of the busiest node over their mean; null of one node",
           nullable=True),
    Column("duplicate_bytes", "int64", "bytes",
           "what nodes hold at the end beside the first copy of each object; null of one node", nullable=True,
           limit=MOST),
    Column("capacity_bytes", "int64", "bytes", "all tiers of all nodes together; null if one has no bound",
           nullable=True, limit=MOST),
    Column("price", "float64", "as given", "what the tiers with a price cost; null without one, or without a bound",
           nullable=True),
    Column("tier.*.instances", "int64", "count", "how many of it there are: one, or in a fleet one a node, or a rack; "
           "its rates and bytes are of all together", nullable=True),
    Column("tier.*.capacity_bytes", "int64", "bytes", "how much each of them holds; null without a bound",
           nullable=True, limit=MOST),
    Column("tier.*.hit_ratio", "float64", "share of 1", "look-ups that hit in it", nullable=True),
    Column("tier.*.read_bytes", "int64", "bytes", "read from it", nullable=True, limit=MOST),
    Column("tier.*.written_bytes", "int64", "bytes", "written to it, what was populated before the start included",
           nullable=True, limit=MOST),
    *(Column(f"tier.*.{name}", "float64", unit, f"{words}{end}", nullable=True)
      for field, unit, words in (
          ("read_bytes_per_s", "bytes/s", "read from it a second"),
          ("write_bytes_per_s", "bytes/s", "written to it a second"),
          ("reads_per_s", "1/s", "objects read from it a second"),
          ("writes_per_s", "1/s", "objects written to it a second"))
      for name, end in (
          (field, ", mean over the span"),
          (f"p99_second_{field}", ", in the second that 1 % of all exceed; null with fewer than 100 seconds"))),
    Column("tier.*.drive_writes_per_day", "float64", "1/day",
           "of the slowest tier: how often its capacity, or the drive size that is stated, is written a day, on "
           "average over its instances",
           nullable=True),
    Column("tier.*.life_years", "float64", "years", "of the slowest tier: how long each lasts at the endurance stated",
           nullable=True),
))
# fmt: on


def study_table(names: Mapping[str, Mapping[str, str]]) -> Table:
    """Return the table with a column for each name, in the place of those called after it, such as `knob.*`.

    `names` has by such a name, `knob`, what stands for the star, and of which type that is; "" is the column's own.
    """
    columns: list[Column] = []
    for family, of in groupby(STUDY.columns, lambda column: column.name.partition(".*")[0]):
        listed = list(of)
        if "*" not in listed[0].name:
            columns += listed
            continue
        for name, type_ in names.get(family, {}).items():
            columns += [replace(c, name=c.name.replace("*", name, 1), type=type_ or c.type) for c in listed]
    return replace(STUDY, columns=tuple(columns))
