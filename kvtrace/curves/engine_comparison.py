"""Several models and GPUs side by side: `kvtrace.compare_engines`.

Each pair of a model and a GPU is an engine, whose break-even is that of `kvtrace.break_even`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Final

from kvtrace.core import pl
from kvtrace.core.document.document import (
    Chapter,
    Document,
    ReportColumn,
    ReportTable,
    Sheet,
    Unit,
    table_of,
)
from kvtrace.core.errors import ConfigError
from kvtrace.core.json_types import JsonObject
from kvtrace.core.notebook import html_table
from kvtrace.core.parameters import named, suggest_keywords
from kvtrace.curves.break_even import (
    SHORTEST_TOKENS,
    TOKENS,
    BreakEven,
    StoreVerdict,
    break_even,
    chart_of,
)
from kvtrace.llm.catalogue import find_model
from kvtrace.requests.registry import read_requests
from kvtrace.requests.requests import Requests

MOST_ENGINES: Final = 64
"""Engines that one table shows."""


@dataclass(frozen=True, slots=True)
class EngineComparison:
    """The break-even bandwidth of several engines, and which stores pay on each."""

    engines: list[BreakEven]
    """One for each model on each GPU, models first."""

    @property
    def answer(self) -> str:
        """For each store the engines on which it pays, in one line."""
        clauses = []
        for index, verdict in enumerate(self.engines[0].verdicts):
            engines = ", ".join(
                f"{engine.name} {_pays_text(engine.verdicts[index])}" for engine in self.engines
            )
            clauses.append(f"{verdict.store.describe()}: {engines}")
        return "; ".join(clauses)

    def to_polars(self) -> pl.DataFrame:
        """Return one row for each engine, prefix length and store, as `BreakEven.to_polars`."""
        return pl.concat(
            engine.to_polars().select(
                pl.lit(engine.model).alias("model"), pl.lit(engine.gpu).alias("gpu"), pl.all()
            )
            for engine in self.engines
        )

    def to_dict(self) -> JsonObject:
        """Return everything as `kvtrace breakeven --json` prints it."""
        return {
            "answer": self.answer,
            "engines": [engine.to_dict() for engine in self.engines],
        }

    def document(self) -> Document:
        """Return the answer, a row for each engine, their picture, and the table of each."""
        chapters = [Chapter("", [self._table()], self._notes())]
        for engine in self.engines:
            (chapter,) = engine.document().chapters
            tables = [_without_charts(table) for table in chapter.tables]
            chapters.append(Chapter(engine.name, tables))
        return Document("", self.answer, chapters)

    def _table(self) -> ReportTable:
        lengths = [point.tokens for point in self.engines[0].points]
        columns = [
            ReportColumn("engine"),
            ReportColumn("kv_bytes_per_token", "KV cache a token", Unit.BYTES),
            *(
                ReportColumn(f"at_{tokens}", f"break-even at {tokens:,} tokens", Unit.BYTES_PER_S)
                for tokens in lengths
            ),
            *(
                # By its number: a store may have the name of another column.
                ReportColumn(f"store{number}", f"{verdict.store.name} pays from (tokens)")
                for number, verdict in enumerate(self.engines[0].verdicts)
            ),
        ]
        rows: list[dict[str, object]] = []
        for engine in self.engines:
            row: dict[str, object] = {
                "engine": engine.name,
                "kv_bytes_per_token": engine.points[0].kv_bytes / engine.points[0].tokens,
            }
            row |= {f"at_{point.tokens}": point.break_even_bytes_per_s for point in engine.points}
            row |= {
                f"store{number}": _pays_cell(verdict)
                for number, verdict in enumerate(engine.verdicts)
            }
            rows.append(row)
        chart = chart_of([(f"break-even, {engine.name}", engine) for engine in self.engines])
        title = "break-even bandwidth of each engine"
        return table_of(title, Sheet.SUMMARY, columns, rows, charts=(chart,))

    def _notes(self) -> list[str]:
        return list(dict.fromkeys(note for engine in self.engines for note in engine.notes))

    def __repr__(self) -> str:
        """Return the answer."""
        return f"EngineComparison({self.answer!r})"

    def _repr_html_(self) -> str:
        """Return a row for each engine and store, for a notebook."""
        rows = [
            [engine.name, verdict.store.name, str(_pays_cell(verdict))]
            for engine in self.engines
            for verdict in engine.verdicts
        ]
        return html_table(["engine", "store", "pays from (tokens)"], rows)


@suggest_keywords
def compare_engines(
    requests: Requests | str | Path | None = None,
    *,
    models: Sequence[str | Path] = ("llama3.1-8b",),
    gpus: Sequence[str] = ("h100",),
    tensor_parallel: int | None = None,
    kv_dtype: str | None = None,
    stores: Sequence[str] | None = None,
    prefix_tokens: Sequence[int] | None = None,
    loads: int = 1,
) -> EngineComparison:
    """Return the break-even bandwidth of each of `models` on each of `gpus`.

    Args:
        requests: As in `break_even`.
        models: Names of models, or paths of a `config.json`.
        gpus: GPUs, such as "h100".
        tensor_parallel: Tensor-parallel ranks of every engine. Default: as in `break_even`.
        kv_dtype: As in `break_even`.
        stores: As in `break_even`.
        prefix_tokens: As in `break_even`. Default: powers of two up to the shortest context.
        loads: As in `break_even`.

    Raises:
        ConfigError: as `break_even`, and for no or too many engines, or one that is there twice.
        TraceError: as `break_even`.

    Examples:
        >>> import kvtrace as kt
        >>> found = kt.compare_engines(gpus=["h100", "a100"], stores=["qlc=3GB/s,100us"])
        >>> [engine.verdicts[0].pays_from_tokens for engine in found.engines]
        [54121, 16]

    """
    for parameter, names in (("models", models), ("gpus", gpus)):
        texts = [str(name) for name in names]
        if "" in texts:
            raise ConfigError(f"{named(parameter)}: a name is empty")
        if not texts or len(set(texts)) < len(texts):
            raise ConfigError(f"{named(parameter)}: give one or more, each once")
    if len(models) * len(gpus) > MOST_ENGINES:
        raise ConfigError(
            f"{named('models')}: {len(models) * len(gpus)} engines; at most {MOST_ENGINES}"
        )
    if isinstance(requests, str | Path):
        requests = read_requests(requests)
    lengths = _shared_lengths(models, kv_dtype) if prefix_tokens is None else prefix_tokens
    return EngineComparison(
        [
            break_even(
                requests,
                model=model,
                gpu=gpu,
                tensor_parallel=tensor_parallel,
                kv_dtype=kv_dtype,
                stores=stores,
                prefix_tokens=lengths,
                loads=loads,
            )
            for model, gpu in product(models, gpus)
        ]
    )


def _shared_lengths(models: Sequence[str | Path], kv_dtype: str | None) -> list[int]:
    """Return lengths of prefixes that every model's context has."""
    shortest = min(find_model(str(model), kv_dtype).max_context_tokens for model in models)
    return sorted({min(tokens, shortest) for tokens in TOKENS})


def _pays_text(verdict: StoreVerdict) -> str:
    if verdict.pays_from_tokens is None:
        return "never"
    if verdict.pays_from_tokens <= SHORTEST_TOKENS:
        return "always"
    return f"from {verdict.pays_from_tokens:,} tokens on"


def _pays_cell(verdict: StoreVerdict) -> str:
    tokens = verdict.pays_from_tokens
    return "never" if tokens is None else f"{tokens:,}"


def _without_charts(table: ReportTable) -> ReportTable:
    """Return `table` without its charts, which the comparison draws for all engines."""
    return replace(table, charts=())
