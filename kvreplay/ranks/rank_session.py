"""Replays on all ranks.

Rank 0 runs the command, and whenever that replays, all ranks replay their parts together.

So trials and sweeps, which decide what to replay next, run on rank 0 alone and do not deal with
ranks. `Meeting` synchronizes the ranks: when each is prepared, at the common start, and at the end.
`bring` copies the files of ranks on other hosts to rank 0. `Alongside` is for clients of an MLPerf
submission: each rank runs the command with requests of its own, only their replays begin and end
together, and results are combined, not merged.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic_ns
from typing import Any, TypeVar

import msgspec

from kvreplay.plan.output_directory import check_output, make_directory, remove_empty, remove_stale
from kvreplay.plan.replay_config import MAX_SEED, PartitionBy
from kvreplay.plan.tier_targets import paths_of, tier_indices
from kvreplay.ranks.helper import Instant, Ranks
from kvreplay.ranks.merge import merge_ranks, merged_error
from kvreplay.ranks.partition import Part, PartitionOptions, write_part
from kvreplay.ranks.parts import RANK_FILE, RANKS_FILE, Ordered, RankReport
from kvreplay.run.rank_targets import rank_target, remove_rank_folders
from kvreplay.run.replay import FinishedRun, Replay, replay
from kvtrace.core.errors import ConfigError, KvError, RankLost
from kvtrace.core.files import write_json
from kvtrace.core.limit import ALL, STEADIEST, parse_limit
from kvtrace.core.metrics.warmup import parse_warmup
from kvtrace.core.parameters import named
from kvtrace.core.remote import given_path, remote_folder
from kvtrace.core.run.run_file import MLPERF_FILE, RANK_FOLDER, RUN_FILE
from kvtrace.core.schema import TRACE
from kvtrace.core.tables import objects_path, open_table

WAIT_S = 10.0
"""Time for the other ranks to write their results, if they cannot be reached."""
_GOLDEN = 0x9E3779B97F4A7C15
"""Difference between the seeds of two successive ranks.

Different seeds give copies of an object on two ranks different data.
"""


class RankSession:
    """The ranks of one command."""

    def __init__(self, ranks: Ranks, by: PartitionBy | None = None) -> None:
        """Partition traces over `ranks` by the key `by`; if None, each trace decides."""
        self.ranks, self._by = ranks, by
        self._hosts = [
            str(data, "utf-8") if data else "" for data in ranks.exchange(ranks.host.encode())
        ]

    def replay(self, request: Replay) -> FinishedRun:
        """Replay a trace on all ranks, as rank 0; errors as of `run.replay`."""
        config, output = request.config, request.output
        request.check_options()
        if config.window not in (None, ALL, STEADIEST):
            raise ConfigError(
                f"{named('window', config.window)} is for one process: leave {named('mpi')} out"
            )
        if config.node is not None:
            raise ConfigError(
                f"{named('node', config.node)} is for one process: with {named('mpi')} say"
                f" {named('partition', 'node')}, a rank a node"
            )
        check_output(output, is_forced=request.is_forced)
        open_table(request.trace, TRACE)
        if remote_folder(request.trace):
            raise ConfigError(
                f"{given_path(request.trace)}: with {named('mpi')} copy the trace to a folder that"
                " all ranks see"
            )
        config = replace(config, window=None)
        order = Ordered(
            count=self.ranks.count,
            hosts=self._hosts,
            library=self.ranks.library,
            argv=request.argv,
            config=config,
            trace=str(request.trace.resolve()),
            output=str(output),
            is_forced=request.is_forced,
            partition=self._by,
        )
        make_directory(output, RUN_FILE)
        remove_stale(output, {RANK_FOLDER.format(rank) for rank in range(self.ranks.count)})
        write_json(output / RANKS_FILE, order)
        self.ranks.note_folder(str(output.resolve()))
        with suppress(RankLost):
            self.ranks.exchange(msgspec.msgpack.encode(order))
        self._carry_out(order, request)
        run = merge_ranks(
            output, because=self.ranks.reason, wait_s=WAIT_S if self.ranks.lost else 0.0
        )
        return FinishedRun(run, merged_error(run, output))

    def follow(self) -> None:
        """Carry out the orders of rank 0 until there are no more."""
        while True:
            try:
                data = self.ranks.exchange(b"")[0]
            except RankLost:
                return
            if not data:
                return
            order = msgspec.msgpack.decode(data, type=Ordered)
            request = Replay(
                order.config,
                Path(order.trace),
                Path(order.output),
                order.argv,
                is_forced=order.is_forced,
            )
            with suppress(KvError):
                # Rank 0 reports the error.
                self._carry_out(order, request)

    def close(self) -> None:
        """Tell the other ranks that no more orders follow."""
        with suppress(RankLost):
            self.ranks.exchange(b"")

    def _carry_out(self, order: Ordered, request: Replay) -> None:
        """Replay this rank's part, and bring the results of all ranks to rank 0.

        KvError if a rank could not be prepared; then no rank begins.
        """
        output, rank = request.output, self.ranks.rank
        folder = output / RANK_FOLDER.format(rank)
        meeting = Meeting(self.ranks)
        trace_part: Part | None = None
        error: KvError | None = None
        try:
            output.mkdir(exist_ok=True)
            # Remove the file of an earlier run, because its presence tells that this run has ended.
            (folder / RANK_FILE).unlink(missing_ok=True)
            trace_part = self._write_part(order)
            self._replay_part(request, trace_part, folder, meeting)
        except KvError as caught:
            error = caught
        meeting.leave(error)
        if meeting.is_off:
            path = output / f"{RANK_FOLDER.format(rank)}.parquet"
            path.unlink(missing_ok=True)
            objects_path(path).unlink(missing_ok=True)
            with suppress(RankLost):
                # Wait until all ranks have removed their files.
                self.ranks.exchange(b"")
            if rank == 0:
                # Remove the files that were made for a run that did not begin.
                (output / RANKS_FILE).unlink(missing_ok=True)
                for directory in (*output.glob("rank-*/"), output):
                    remove_empty(directory)
            raise error or Elsewhere("another rank reports the reason")
        folder.mkdir(exist_ok=True)
        write_json(folder / RANK_FILE, self._report(trace_part, meeting, error))
        bring(self.ranks, output)

    def _write_part(self, order: Ordered) -> Part:
        trace, config = Path(order.trace), order.config
        meta = open_table(trace, TRACE).meta
        warmup = parse_warmup(config.warmup)
        options = PartitionOptions(
            by=order.partition,
            ranks=order.count,
            limit=parse_limit(config.limit),
            tiers=frozenset(
                i for i, _ in tier_indices([t.name for t in meta.tiers], config.tiers, trace)
            ),
            requests=None if config.requests is None else Path(config.requests),
            warmup_rows=None if warmup is None else warmup.rows,
        )
        name = RANK_FOLDER.format(self.ranks.rank)
        return write_part(trace, options, self.ranks.rank, Path(order.output) / f"{name}.parquet")

    def _replay_part(
        self, request: Replay, trace_part: Part, folder: Path, meeting: Meeting
    ) -> None:
        """Replay our part together with the other ranks, if it has rows."""
        config, rank, rows = request.config, self.ranks.rank, trace_part.warmup_rows
        if not trace_part.planned:
            return
        targets = {
            name: rank_target(name, target, rank, self._hosts)
            for name, target in config.tiers.items()
        }
        seed = (
            config.seed
            if config.seed is not None
            else (open_table(request.trace, TRACE).meta.seed or 0)
        )
        rank_config = replace(
            config,
            tiers=targets,
            seed=(seed + rank * _GOLDEN) & MAX_SEED,
            # The limit was applied to the whole trace already.
            limit=None,
            warmup=config.warmup if rows is None else f"{rows}rows" if rows else None,
        )
        try:
            replay(
                replace(request, config=rank_config, trace=trace_part.path, output=folder),
                together=meeting,
            )
        finally:
            if not config.is_kept:
                remove_rank_folders(list(targets.values()))

    def _report(
        self, trace_part: Part | None, meeting: Meeting, error: KvError | None
    ) -> RankReport:
        before = after = meeting.before
        with suppress(RankLost):
            after = self.ranks.clock()
        orphaned = self.ranks.orphaned_ns
        return RankReport(
            rank=self.ranks.rank,
            host=self.ranks.host,
            cpus=len(os.sched_getaffinity(0)),
            partition=None if trace_part is None else trace_part.note,
            is_whole=trace_part is None or trace_part.is_whole,
            is_idle=trace_part is not None and not trace_part.planned,
            error=None if error is None else str(error),
            clock_offset_ns=before.offset_ns,
            clock_error_ns=before.error_ns,
            clock_drift_ns=after.offset_ns - before.offset_ns,
            start_ns=None if meeting.start_ns is None else meeting.start_ns - before.offset_ns,
            begun_late_ns=meeting.late_ns,
            stood_still_ns=after.deaf_ns or None,
            orphaned_ns=None if orphaned is None else orphaned - before.offset_ns,
        )


MARGIN_NS = 100_000_000
"""Time from the latest rank's earliest start to the common start.

Within it the agreed time reaches all ranks.
"""


class Elsewhere(KvError):  # noqa: N818 - an error of another rank
    """The error of another rank, with its message and exit code."""


class Meeting:
    """The points of one replay at which all ranks wait for each other."""

    def __init__(self, ranks: Ranks) -> None:
        """Synchronize with the other ranks of `ranks`."""
        self._ranks = ranks
        self._is_ready = self._is_agreed = False
        self.is_off = False
        """Whether a rank could not be prepared, so that no rank begins."""
        self.before = Instant()
        """Offset of our clock from rank 0's at the start."""
        self.start_ns: int | None = None
        """Common start on this host's clock; None if the ranks never agreed on one."""
        self.late_ns: int | None = None
        """Time from the common start to our own start."""

    @property
    def reason(self) -> str | None:
        """The reason why all ranks end now."""
        return self._ranks.reason

    def ready(self, error: KvError | None = None) -> None:
        """Wait until all ranks are prepared; `error` is the reason why this rank is not."""
        self._is_ready = True
        mine = b"" if error is None else msgspec.msgpack.encode((str(error), error.exit_code))
        try:
            replies = self._ranks.exchange(mine)
        except RankLost:
            # `reason` is set by now, and the run ends before its first operation.
            return
        refused = [(rank, data) for rank, data in enumerate(replies) if data]
        self.is_off = bool(refused)
        if refused and error is None:
            rank, data = refused[0]
            message, exit_code = msgspec.msgpack.decode(data, type=tuple[str, int])
            elsewhere = Elsewhere(f"rank {rank}: {message}")
            elsewhere.exit_code = exit_code
            raise elsewhere

    def agree(self, soonest_ns: int | None) -> int:
        """Agree on the common start, and return it by our clock.

        `soonest_ns` is the earliest time at which this rank can begin, None if it will not begin.
        """
        self._is_agreed = True
        try:
            self.before = self._ranks.clock()
            offset_ns = self.before.offset_ns
            mine = b"" if soonest_ns is None else msgspec.msgpack.encode(soonest_ns - offset_ns)
            replies = self._ranks.exchange(mine)
        except RankLost:
            return soonest_ns or monotonic_ns()
        instants = [msgspec.msgpack.decode(data, type=int) for data in replies if data]
        margin_ns = MARGIN_NS if self._ranks.count > 1 else 0
        self.start_ns = max(instants, default=monotonic_ns()) + margin_ns + offset_ns
        return self.start_ns

    def begun(self) -> None:
        """Record how late our threads were started.

        It is 0 if they were started before the common start, because they wait for it.
        """
        if self.start_ns is not None:
            self.late_ns = max(0, monotonic_ns() - self.start_ns)

    def leave(self, error: KvError | None) -> None:
        """Take part in the remaining synchronizations, so that no rank waits for this one.

        `error` is the reason why this rank leaves early.
        """
        if error is not None and not (self._is_agreed or self.is_off):
            # Other ranks may be writing populated objects for minutes, in vain.
            self._ranks.stop(f"an error of rank {self._ranks.rank}: {error}")
        if not self._is_ready:
            with suppress(Elsewhere):
                self.ready(error)
        if not self._is_agreed and not self.is_off:
            self.agree(None)


CHUNK_BYTES = 16 << 20


def bring(ranks: Ranks, output: Path, last: str = RANK_FILE) -> None:
    """Copy the folder of each rank to rank 0's `output`, unless it is there already.

    It is missing there if the rank is on another host without a shared filesystem. A rank writes
    its file `last` at the end, so the digest of that file tells whether the folder is there.
    """
    rank_folder = output / RANK_FOLDER.format(ranks.rank)
    with suppress(RankLost):
        replies = ranks.exchange(_digest(rank_folder / last))
        last_files = [
            output / RANK_FOLDER.format(rank) / last
            for rank in range(ranks.count if ranks.rank == 0 else 0)
        ]
        missing = [
            rank
            for rank, (digest, file) in enumerate(zip(replies, last_files, strict=False))
            if digest is not None and _digest(file) != digest
        ]
        answer = ranks.exchange(msgspec.msgpack.encode(missing))[0]
        senders: list[int] = msgspec.msgpack.decode(answer, type=list[int]) if answer else []
        if not senders:
            return
        files: list[Path] = []
        if ranks.rank in senders:
            files = sorted(path for path in rank_folder.rglob("*") if path.is_file())
        chunks = [
            (path, offset)
            for path in files
            for offset in range(0, max(1, path.stat().st_size), CHUNK_BYTES)
        ]
        counts = ranks.exchange(msgspec.msgpack.encode(len(chunks)))
        rounds = max(
            (msgspec.msgpack.decode(count, type=int) for count in counts if count), default=0
        )
        for number in range(rounds):
            message = b""
            if number < len(chunks):
                path, offset = chunks[number]
                with path.open("rb") as file:
                    file.seek(offset)
                    name = str(path.relative_to(rank_folder))
                    message = msgspec.msgpack.encode((name, offset, file.read(CHUNK_BYTES)))
            for rank, data in enumerate(ranks.exchange(message, to_all=False)):
                if data and ranks.rank == 0:
                    name, offset, content = msgspec.msgpack.decode(
                        data, type=tuple[str, int, bytes]
                    )
                    path = output / RANK_FOLDER.format(rank) / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with path.open("r+b" if offset else "wb") as copy:
                        copy.seek(offset)
                        copy.write(content)


def _digest(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest() if path.is_file() else b"none"


T = TypeVar("T")


class Alongside:
    """A command that every rank runs."""

    def __init__(self, ranks: Ranks) -> None:
        """Run the command on `ranks`."""
        self.ranks = ranks
        with suppress(RankLost):
            ranks.exchange(b"")

    def together(self, do: Callable[[], T]) -> T:
        """Return the result of `do` if it succeeds on all ranks.

        KvError if it fails on this rank or on another.
        """
        meeting = Meeting(self.ranks)
        try:
            result = do()
        except KvError as error:
            meeting.ready(error)
            raise
        meeting.ready()
        return result

    def gather(self, value: object) -> list[Any]:
        """Return the values of all ranks, by rank; None for a rank that has ended."""
        replies = self.ranks.exchange(msgspec.msgpack.encode(value))
        return [None if data is None else msgspec.msgpack.decode(data) for data in replies]

    def replay(self, request: Replay) -> FinishedRun:
        """Replay this rank's trace while the other ranks replay theirs.

        Errors are those of `run.replay`.
        """
        meeting = Meeting(self.ranks)
        try:
            finished = replay(request, together=meeting)
        except KvError as error:
            meeting.leave(error)
            raise
        meeting.leave(None)
        if finished.run.status == "partial":
            # No rank may go on, for example with another trial.
            self.ranks.stop(f"an error of rank {self.ranks.rank}: {finished.run.reason}")
        return finished


def own_client(
    ranks: Alongside, tiers: dict[str, str], storage: str, output: Path, *, is_forced: bool
) -> tuple[dict[str, str], Path, int]:
    """Return our rank's targets, its results folder, and how many ranks share its filesystem.

    The filesystem is that of the tier `storage`.

    ConfigError or DeviceError if a target cannot be used, here or on another rank.
    """
    rank = ranks.ranks.rank
    hosts = [str(host) for host in ranks.gather(ranks.ranks.host)]

    def prepare() -> tuple[dict[str, str], Path]:
        if rank == 0:
            check_output(output, is_forced=is_forced)
            make_directory(output, MLPERF_FILE)
        targets = {name: rank_target(name, target, rank, hosts) for name, target in tiers.items()}
        return targets, output

    targets, _ = ranks.together(prepare)
    ranks.together(lambda: make_directory(output, MLPERF_FILE))
    filesystem = (
        [str(path.stat().st_dev) for path in paths_of(targets[storage]) if path.is_dir()]
        if storage in targets
        else []
    )
    filesystems = ranks.gather([hosts[rank], *filesystem])
    return (
        targets,
        output / RANK_FOLDER.format(rank),
        max(1, filesystems.count([hosts[rank], *filesystem]) if filesystem else 1),
    )


def bring_results(ranks: Alongside, tiers: dict[str, str], output: Path) -> bool:
    """Bring the results of all ranks to rank 0, and return whether this is rank 0.

    Remove this rank's empty folders below its targets, `tiers`.
    """
    remove_rank_folders(list(tiers.values()))
    with suppress(RankLost):
        ranks.ranks.exchange(b"")
    bring(ranks.ranks, output, MLPERF_FILE)
    return ranks.ranks.rank == 0


def is_of_ranks(path: Path) -> bool:
    """Return whether `path` is the output of a run of several ranks, complete or not."""
    return (path / RANKS_FILE).is_file()


def recover_ranks(path: Path) -> FinishedRun:
    """Write the merged run of all ranks in `path` from the ranks' files.

    ConfigError if it is there already.
    """
    if (path / RUN_FILE).is_file():
        raise ConfigError(f"{path}: its ranks are merged already; nothing to recover")
    run = merge_ranks(path)
    return FinishedRun(run, merged_error(run, path))
