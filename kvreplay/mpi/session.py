"""Replays on all ranks: rank 0 runs the command, and whenever that replays, all ranks do their parts together.

So whatever decides what to replay next, trials or a sweep, runs on rank 0 alone and needs to know nothing of ranks.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from kvreplay.config.config import MAX_SEED, Config, check, parse_warmup
from kvreplay.config.tiers import tier_indices
from kvreplay.mpi import gather
from kvreplay.mpi.meeting import Elsewhere, Meeting
from kvreplay.mpi.pooled.files import RANK_FILE, RANKS_FILE, Ordered, RankReport, write_told
from kvreplay.mpi.pooled.pool import pool, pooled_error
from kvreplay.ranks import partition
from kvreplay.ranks.helper import Ranks
from kvreplay.ranks.partition import Deal, DealAsked, Part, deal
from kvreplay.result import tables
from kvreplay.run.run import FinishedRun, replay
from kvreplay.run.watch import Watching
from kvtrace.core.errors import ConfigError, KvError, RankLost
from kvtrace.core.files import parse_limit, write_json
from kvtrace.core.run.run_file import RANK_FOLDER, RUN_FILE
from kvtrace.core.schema import TRACE
from kvtrace.core.tables import objects_path, open_table

WAIT_S = 10.0
"""For the others to write what they have, if they cannot be asked."""
_GOLDEN = 0x9E3779B97F4A7C15
"""Seeds of ranks lie this far apart: copies of an object on two ranks must not have the same data."""


class RankSession:
    """The ranks of one command."""

    def __init__(self, ranks: Ranks, by: Deal | None = None) -> None:
        """Deal traces to `ranks` by `by`; null: as each trace suggests."""
        self.ranks, self._by = ranks, by
        self._hosts = [str(data, "utf-8") if data else "" for data in ranks.exchange(ranks.host.encode())]

    def replay(
        self,
        config: Config,
        trace: Path,
        output: Path,
        argv: list[str],
        *,
        is_forced: bool = False,
        show: Callable[[str, int], Any] | None = None,
        watching: Watching | None = None,
    ) -> FinishedRun:
        """Replay `trace` on all ranks, as rank 0; parameters and errors as of `run.replay`."""
        check(config)
        if config.node is not None:
            raise ConfigError(f"--node {config.node} is for one process: with --mpi say --deal node, a rank a node")
        tables.check_output(output, is_forced=is_forced)
        open_table(trace, TRACE)
        order = Ordered(
            count=self.ranks.count,
            hosts=self._hosts,
            library=self.ranks.library,
            argv=argv,
            config=config,
            trace=str(trace.resolve()),
            output=str(output),
            is_forced=is_forced,
            deal=self._by,
        )
        tables.make_directory(output, RUN_FILE)
        tables.remove_stale(output, {RANK_FOLDER.format(rank) for rank in range(self.ranks.count)})
        write_json(output / RANKS_FILE, order)
        self.ranks.note_folder(str(output.resolve()))
        with suppress(RankLost):
            self.ranks.exchange(msgspec.msgpack.encode(order))
        self._all(order, show, watching)
        run = pool(output, because=self.ranks.reason, wait_s=WAIT_S if self.ranks.is_lost else 0.0)
        return FinishedRun(run, pooled_error(run, output))

    def follow(self) -> None:
        """Do what rank 0 orders until it orders nothing more."""
        while True:
            try:
                data = self.ranks.exchange(b"")[0]
            except RankLost:
                return
            if not data:
                return
            order = msgspec.msgpack.decode(data, type=Ordered)
            with suppress(KvError):
                # Rank 0 says it.
                self._all(order, None, None)

    def close(self) -> None:
        """Order nothing more."""
        with suppress(RankLost):
            self.ranks.exchange(b"")

    def _all(self, order: Ordered, show: Callable[[str, int], Any] | None, watching: Watching | None) -> None:
        """Do our part, and bring what all left to rank 0.

        Raises:
            KvError: a rank could not be prepared, so none began.

        """
        output, rank = Path(order.output), self.ranks.rank
        folder = output / RANK_FOLDER.format(rank)
        meeting = Meeting(self.ranks)
        part: Part | None = None
        error: KvError | None = None
        try:
            output.mkdir(exist_ok=True)
            # Of an earlier run: who finds it must know that this one has ended.
            (folder / RANK_FILE).unlink(missing_ok=True)
            part = self._part(order)
            self._mine(order, part, folder, meeting, show, watching)
        except KvError as found:
            error = found
        meeting.leave(error)
        if meeting.is_off:
            _forget(output / f"{RANK_FOLDER.format(rank)}.parquet")
            with suppress(RankLost):
                # All have done so.
                self.ranks.exchange(b"")
            if rank == 0:
                gather.remove_unbegun(output)
            raise error or Elsewhere("another rank says why")
        write_told(folder, self._told(part, meeting, error))
        gather.bring(self.ranks, output)

    def _part(self, order: Ordered) -> Part:
        """Deal the trace: write our part."""
        trace, config = Path(order.trace), order.config
        meta = open_table(trace, TRACE).meta
        warmup = parse_warmup(config.warmup)
        asked = DealAsked(
            by=None if order.deal is None else Deal(order.deal),
            ranks=order.count,
            limit=parse_limit(config.limit),
            tiers=frozenset(i for i, _ in tier_indices([t.name for t in meta.tiers], config.tiers, trace)),
            requests=None if config.requests is None else Path(config.requests),
            warmup_rows=None if warmup is None else warmup.rows,
        )
        name = RANK_FOLDER.format(self.ranks.rank)
        return deal(trace, asked, self.ranks.rank, Path(order.output) / f"{name}.parquet")

    def _mine(
        self,
        order: Ordered,
        part: Part,
        folder: Path,
        meeting: Meeting,
        show: Callable[[str, int], Any] | None,
        watching: Watching | None,
    ) -> None:
        """Replay our part, together with the others; with nothing to replay, only meet them."""
        config, rank = order.config, self.ranks.rank
        if not part.planned:
            return
        targets = {n: partition.target_of(n, target, rank, self._hosts) for n, target in config.tiers.items()}
        seed = config.seed if config.seed is not None else (open_table(order.trace, TRACE).meta.seed or 0)
        own = msgspec.structs.replace(
            config,
            tiers=targets,
            seed=(seed + rank * _GOLDEN) & MAX_SEED,
            # The part is what the limit left of the trace.
            limit=None,
            warmup=config.warmup
            if part.warmup_rows is None
            else f"{part.warmup_rows}rows"
            if part.warmup_rows
            else None,
        )
        try:
            replay(
                own,
                part.path,
                folder,
                order.argv,
                is_forced=order.is_forced,
                show=show,
                watching=watching,
                together=meeting,
            )
        finally:
            if not config.is_kept:
                partition.leave(list(targets.values()))

    def _told(self, part: Part | None, meeting: Meeting, error: KvError | None) -> RankReport:
        """Return what we say of ourselves at the end."""
        before = after = meeting.before
        with suppress(RankLost):
            after = self.ranks.clock()
        orphaned = self.ranks.orphaned_ns
        return RankReport(
            rank=self.ranks.rank,
            host=self.ranks.host,
            cpus=len(os.sched_getaffinity(0)),
            deal=None if part is None else part.note,
            is_whole=part is None or part.is_whole,
            is_idle=part is not None and not part.planned,
            error=None if error is None else str(error),
            clock_offset_ns=before.offset_ns,
            clock_error_ns=before.error_ns,
            clock_drift_ns=after.offset_ns - before.offset_ns,
            start_ns=None if meeting.start_ns is None else meeting.start_ns - before.offset_ns,
            begun_late_ns=meeting.late_ns,
            stood_still_ns=after.deaf_ns or None,
            orphaned_ns=None if orphaned is None else orphaned - before.offset_ns,
        )


def _forget(path: Path) -> None:
    path.unlink(missing_ok=True)
    objects_path(path).unlink(missing_ok=True)
