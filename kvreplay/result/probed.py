"""The probes during a replay: `kvreplay probe` in a process of its own, attached for the measured part alone.

The process that submits has no time to read events; a second one disturbs it least.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from kvreplay.config.config import Config
from kvreplay.probes.libbpf import beneath
from kvreplay.probes.session import ATTACHED
from kvreplay.tiers.host import device_number
from kvreplay.tiers.tier import Tier, drives_of
from kvtrace.core.app import log
from kvtrace.core.errors import DeviceError, ProbeUnavailable
from kvtrace.core.run.probe_file import ProbeFile, find_probe
from kvtrace.core.run.run_file import BLOCKS_FILE, PROBE_FILE, ProbesNote, argv_of
from kvtrace.core.schema import BLOCKS
from kvtrace.core.tables import open_table

if TYPE_CHECKING:
    import pyarrow as pa

_ERROR = "kvreplay: error: "
_END_S = 60
_TIMES = ("insert_ns", "issue_ns", "complete_ns")


@dataclass(frozen=True, slots=True)
class Probed:
    """What the probes during a replay found, or why there were none."""

    reason: str | None
    """Why they were left out; None if they measured."""
    content: ProbeFile | None
    """Null without."""
    directory: Path | None
    """Where their files are until the run is written."""
    started_ns: int | None
    """The replay's start on the monotonic clock; None if it never started."""

    @property
    def has_events(self) -> bool:
        """Whether there are rows of blocks."""
        return self.started_ns is not None and self.content is not None and self.content.event_rows is not None

    @property
    def _since_start_ns(self) -> int | None:
        """When the probes started after the replay; null if one of them never did."""
        start_ns = None if self.content is None else self.content.start_monotonic_ns
        return None if start_ns is None or self.started_ns is None else start_ns - self.started_ns

    def facts(self) -> ProbesNote:
        """Return what run.json says of them."""
        if self.content is None:
            return ProbesNote(is_measured=False, reason=self.reason)
        return ProbesNote(
            is_measured=True,
            file=PROBE_FILE,
            event_rows=self.content.event_rows,
            devices=self.content.devices,
            start_ns=self._since_start_ns,
            duration_ns=self.content.duration_ns,
        )

    def blocks(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of blocks, with times from the replay's start."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.directory is None or (shift_ns := self._since_start_ns) is None:
            return
        for batch in open_table(self.directory / BLOCKS_FILE, BLOCKS).batches():
            columns = [
                pc.add(batch.column(name), pa.scalar(shift_ns, pa.int64())) if name in _TIMES else batch.column(name)
                for name in BLOCKS.names
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=batch.schema)

    def save(self, output: Path) -> None:
        """Move probe.json to the run's directory, `output`."""
        if self.directory is not None:
            (self.directory / PROBE_FILE).replace(output / PROBE_FILE)


@contextmanager
def probing(
    config: Config, tiers: list[Tier | None], output: Path, *, is_of_all: bool = False
) -> Iterator[Callable[[int | None], Probed | None]]:
    """Attach probes to this process tree if the configuration asks; yield a function that ends them.

    `is_of_all` attaches them to all processes on the tiers' disks instead: the kernel's own write back a page cache.
    The function takes the replay's start on the monotonic clock, or None if it never started.
    Where they cannot run, one line on stderr says why and what mends it, and the replay goes on.
    """
    if not config.is_probed:
        yield lambda _started_ns: None
        return
    with ExitStack() as stack:
        staging = tempfile.TemporaryDirectory(prefix=f".{output.name}-", dir=output.resolve().parent)
        directory, left_out = Path(stack.enter_context(staging)) / "probe", None
        try:
            process = stack.enter_context(_attached(_command(config, tiers, directory, is_of_all=is_of_all)))
        except ProbeUnavailable as error:
            left_out = _left_out(str(error))
        yield lambda started_ns: left_out or _end(process, directory, started_ns)


@contextmanager
def _attached(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Yield the process that probes, attached; at last it is ended. ProbeUnavailable if it cannot."""
    try:
        process = subprocess.Popen(  # noqa: S603 - our own program
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
    except OSError as error:
        raise ProbeUnavailable(f"{command[0]} does not start: {error.strerror}") from None
    with process:
        try:
            said = _stderr(process).readline().strip()
            if said != ATTACHED:
                raise ProbeUnavailable(said)
            yield process
        finally:
            process.kill()


def _stderr(process: subprocess.Popen[str]) -> IO[str]:
    return cast("IO[str]", process.stderr)


def _command(config: Config, tiers: list[Tier | None], directory: Path, *, is_of_all: bool) -> list[str]:
    command = argv_of("kvreplay", "probe", "-o", str(directory))
    if not is_of_all:
        command += ["--pid", str(os.getpid())]
    for device in _devices(tiers):
        command += ["--dev", str(device)]
    return [*command, "--histograms-only"] if config.is_histograms_only else command


def _devices(tiers: list[Tier | None]) -> list[Path]:
    """Return the disks beneath all tiers on storage; none, for all, if those of one are not known."""
    found: dict[str, Path] = {}
    for drive in drives_of(tiers):
        number = device_number(Path(drive.target))
        try:
            disks = beneath(os.major(number), os.minor(number))
        except DeviceError:
            return []
        found |= {disk.name: Path("/dev") / disk.name for disk in disks}
    return list(found.values()) if all(path.is_block_device() for path in found.values()) else []


def _end(process: subprocess.Popen[str], directory: Path, started_ns: int | None) -> Probed:
    process.send_signal(signal.SIGINT)
    try:
        process.wait(timeout=_END_S)
    except subprocess.TimeoutExpired:
        return _left_out(f"the probes did not end within {_END_S} s")
    if process.returncode:
        return _left_out(_stderr(process).read().strip())
    return Probed(None, find_probe(directory), directory, started_ns)


def _left_out(said: str) -> Probed:
    lines = said.splitlines() or ["kvreplay probe ended without saying why"]
    reason = lines[-1].removeprefix(_ERROR)
    log(f"left out the probes: {reason}")
    return Probed(reason, None, None, None)
