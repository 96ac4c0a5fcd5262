"""The storage time of each request: the table `served`, which a run holds as requests.parquet, and its figures.

A replay computes nothing. The time to the first token is what storage took in the replay, plus the computing time
that the trace models: each token of the prompt that the trace did not load takes what its preset says.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from kvreplay.config.setting import Setting
from kvreplay.native.rows import NOT_DONE, READ
from kvreplay.plan.loader import IS_LOAD
from kvreplay.plan.window import NO_QOS, Asked
from kvreplay.result.counts import MOST, LeastLater, OpenRequests, RequestTimes, RunPart
from kvtrace.core.metadata import Metadata, first_tokens_ns
from kvtrace.core.run.figures import RequestFigures
from kvtrace.core.schema import SERVED, arrow_schema, enum_array, numbers

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("request_id", "phase", "op", "length_bytes")
"""What is asked of the trace's rows."""


class ServedRequests:
    """The requests of a run: rows of the table `served` in order of request_id, and the figures of those given out.

    A request is given out when no row of it, nor of one before it, can follow; until then it is held, 200 bytes each.
    """

    def __init__(self, setting: Setting) -> None:
        """Know no request of the run that `setting` describes."""
        self._setting, self._is_open_loop = setting, setting.pacer.speed is not None
        self._moves = np.array([t is not None and not t.is_simulated for t in setting.tiers])
        self._requests = OpenRequests(self._moves, IS_LOAD, is_open_loop=self._is_open_loop)
        self._later: LeastLater | None = None
        self._is_modelled = not_modelled(setting.reader.meta, setting.asked) is None
        self._last_load = -1
        """The request of the last row, if that loads for it."""
        self._figures = RequestTimes(setting.config.criteria.targets)

    def begin(self) -> None:
        """Start a new part of rows."""
        self._requests.begin()

    def take(self, first_row: int, batch: pa.RecordBatch, part: RunPart, counts: Any) -> Iterator[pa.RecordBatch]:
        """Take the rows of `batch`, from `first_row` on, with what `part` knows of them; yield requests that are over.

        `counts` says of each row of the part whether figures count it.
        """
        columns = {
            **{name: numbers(batch.column(name)) for name in ("request_id", "length_bytes")},
            **{name: numbers(batch.column(name), "i1") for name in ("phase", "op")},
        }
        if (node := self._setting.config.node) is not None:
            # Of other nodes' rows nothing is replayed, and nothing counts.
            is_own = numbers(batch.column("node"), "i4") == node
            columns["request_id"] = np.where(is_own, columns["request_id"], -1)
        at = 0
        while (at := self._requests.take(at, first_row, columns, part, counts)) < batch.num_rows:
            if self._later is None:
                self._later = LeastLater(self._setting.reader, self._setting.window.rows)
            yield from self._given(self._requests.pop(self._later.after(first_row + at)))
            self._requests.make_room()
        if batch.num_rows:
            is_load = IS_LOAD[columns["phase"][-1]] and columns["op"][-1] == READ
            self._last_load = int(columns["request_id"][-1]) if is_load else -1

    def end(self) -> Iterator[pa.RecordBatch]:
        """Yield the requests that are left: no row will follow."""
        yield from self._given(self._requests.pop(MOST), is_last=True)

    def _given(self, found: Any, *, is_last: bool = False) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        if not len(found):
            return
        first_token = self._first_token_ns(found)
        if is_last and not self._setting.window.is_whole:
            # The window may end within this request's loads.
            first_token[found["id"] == self._last_load] = NOT_DONE
        values = {
            name: found[name] for name in ("planned", "operations", "hits", "hit_bytes", "read_bytes", "written_bytes")
        }
        values |= {
            name: np.where(found[name] == MOST, NOT_DONE, found[name]) for name in ("scheduled_ns", "submitted_ns")
        }
        values |= {
            "request_id": found["id"],
            "completed_ns": found["completed_ns"],
            "storage_ns": np.where(found["operations"] > 0, found["storage_ns"], NOT_DONE),
            "first_token_ns": first_token,
            "unfinished": found["planned"] - found["operations"],
            "not_replayed": found["in_window"] - found["planned"],
        }
        codes = self._qos(found["id"])
        counts = found["is_left_out"] == 0
        storage = np.where(found["planned"] == found["operations"], values["storage_ns"], NOT_DONE)[counts]
        response = found["response_ns"][counts] if self._is_open_loop else None
        self._figures.add(storage, response, first_token[counts], codes[counts])
        arrays = [
            enum_array(SERVED, "qos", codes, codes == NO_QOS)
            if c.name == "qos"
            else pa.array(values[c.name], pa.int64(), mask=values[c.name] == NOT_DONE if c.nullable else None)
            for c in SERVED.columns
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(SERVED))

    def _qos(self, ids: Any) -> Any:
        asked = self._setting.asked
        if asked is None or not len(asked.request_id):
            return np.full(len(ids), NO_QOS, np.int8)
        at = asked.places(ids)
        return np.where(at < 0, NO_QOS, asked.qos[at]).astype(np.int8)

    def _first_token_ns(self, found: Any) -> Any:
        """Return int64 a request: the time to its first token; -1 where it is not modelled or a load is missing."""
        asked = self._setting.asked
        if asked is None or not self._is_modelled or not len(asked.request_id):
            return np.full(len(found), NOT_DONE)
        at = asked.places(found["id"])
        start = self._setting.pacer.due_ns(asked.arrival_ns[at]) if self._is_open_loop else found["loads_from_ns"]
        storage = np.where(found["loads"] > 0, found["loads_until_ns"] - start, 0)
        compute = compute_ns(self._setting.reader.meta, asked.input_tokens[at], found["loads"], found["load_bytes"])
        is_known = (at >= 0) & (found["loads_done"] == found["loads"])
        return np.where(is_known, storage + compute, NOT_DONE)

    def figures(self) -> RequestFigures:
        """Return the figures of the requests that were given out."""
        reason = not_modelled(self._setting.reader.meta, self._setting.asked)
        return self._figures.figures(reason, is_open_loop=self._is_open_loop)


NO_REQUESTS = "name the requests table with --requests (kvtrace gen --requests-out writes it)"
NO_RATE = "the trace models no computing time (kvtrace gen --set prefill_ns_per_token=50000)"


def not_modelled(meta: Metadata, asked: Asked | None) -> str | None:
    """Return why there is no time to the first token; None if there is."""
    hierarchy = meta.config.get("hierarchy")
    knobs = hierarchy if isinstance(hierarchy, dict) and (meta.model or {}).get("bytes_per_token") else {}
    if not (knobs.get("prefill_ns_per_token") or knobs.get("prefill_attention")):
        return NO_RATE
    return NO_REQUESTS if asked is None else None


def compute_ns(meta: Metadata, input_tokens: Any, loads: Any, loaded_bytes: Any) -> Any:
    """Return int64 a request: what computing the rest of its prompt takes by the trace's model.

    `loads` and `loaded_bytes` are the rows of the trace that load for it, and their bytes, on all tiers.
    """
    hierarchy, model = meta.config["hierarchy"], meta.model or {}
    hit_tokens = (
        loads // int(model.get("objects_per_chunk") or 1) * int(hierarchy["chunk_tokens"])
        if hierarchy.get("entry") == "chunk"
        else loaded_bytes // int(model["bytes_per_token"])
    )
    whole, loaded = (first_tokens_ns(hierarchy, n) for n in (input_tokens, np.minimum(input_tokens, hit_tokens)))
    return whole - loaded
