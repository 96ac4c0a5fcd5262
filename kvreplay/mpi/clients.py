"""The clients of an MLPerf option as ranks: a folder of its own for each, on the storage and for its results."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from kvreplay.config.tiers import paths_of
from kvreplay.mlperf.attempt import STORAGE
from kvreplay.mpi import gather
from kvreplay.mpi.alongside import Alongside
from kvreplay.ranks import partition
from kvreplay.result.tables import check_output, make_directory
from kvtrace.core.errors import DeviceError, RankLost
from kvtrace.core.run.mlperf_file import MLPERF_FILE
from kvtrace.core.run.run_file import RANK_FOLDER


def own_client(
    ranks: Alongside, tiers: dict[str, str], output: Path, *, is_forced: bool
) -> tuple[dict[str, str], Path, int]:
    """Return the targets and the results' folder of our rank, and how many ranks share the storage's filesystem.

    Raises:
        ConfigError, DeviceError: it cannot be, here or on another rank.

    """
    rank = ranks.ranks.rank
    hosts = [str(host) for host in ranks.told(ranks.ranks.host)]

    def prepare() -> tuple[dict[str, str], Path]:
        if rank == 0:
            check_output(output, is_forced=is_forced)
            make_directory(output, MLPERF_FILE)
        return {n: partition.target_of(n, target, rank, hosts) for n, target in tiers.items()}, output

    own, _ = ranks.together(prepare)
    ranks.together(lambda: _make(output))
    filesystem = [str(path.stat().st_dev) for path in paths_of(own[STORAGE]) if path.is_dir()] if STORAGE in own else []
    there = ranks.told([hosts[rank], *filesystem])
    return own, output / RANK_FOLDER.format(rank), max(1, there.count([hosts[rank], *filesystem]) if filesystem else 1)


def _make(output: Path) -> None:
    try:
        output.mkdir(exist_ok=True)
    except OSError as error:
        raise DeviceError(f"{output}: {error.strerror}") from None


def bring_results(ranks: Alongside, tiers: dict[str, str], output: Path) -> bool:
    """Bring the results of all ranks to rank 0, and return whether we are that one; leave our targets `tiers`."""
    partition.leave(list(tiers.values()))
    with suppress(RankLost):
        ranks.ranks.exchange(b"")
    gather.bring(ranks.ranks, output, MLPERF_FILE)
    return ranks.ranks.rank == 0
