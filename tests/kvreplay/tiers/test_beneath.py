"""What a target lies on at last.

Direct I/O is confirmed on drives only, and memory is said to be memory.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from conftest import write_trace
from phrases import show_each, shows

from kvreplay.plan.replay_config import Config
from kvreplay.run.replay import FinishedRun, Replay, replay
from kvreplay.tiers.host import in_memory, is_on_drive
from kvtrace.core.errors import DeviceError

SIZE = 64 << 20
SHARED_MEMORY = Path("/dev/shm")


def command(*arguments: object) -> str:
    try:
        done = subprocess.run([*map(str, arguments)], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip(f"{arguments[0]} is not installed")
    if done.returncode:
        pytest.skip(f"not permitted here: {' '.join(map(str, arguments))}: {done.stderr.strip()}")
    return done.stdout.strip()


class Places:
    """Makes filesystems and devices, undone by a stack."""

    def __init__(self, base: Path, stack: ExitStack) -> None:
        self._base, self._stack = base, stack

    def directory(self, name: str) -> Path:
        path = self._base / name
        path.mkdir(parents=True)
        return path

    def mounted(self, name: str, *arguments: object) -> Path:
        point = self.directory(name)
        command("mount", *arguments, point)
        self._stack.callback(subprocess.run, ["umount", str(point)], check=False)
        return point

    def loop(self, directory: Path) -> Path:
        with (directory / "backing").open("wb") as file:
            file.truncate(SIZE)
        device = command("losetup", "--find", "--show", directory / "backing")
        self._stack.callback(subprocess.run, ["losetup", "--detach", device], check=False)
        return Path(device)


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Places]:
    with ExitStack() as stack:
        yield Places(tmp_path / "places", stack)


def run(tmp_path: Path, target: Path) -> FinishedRun:
    rows = [(0, op, 2, "store", 0, 0, 65536, None, None, 0) for op in ("write", "read")]
    trace = write_trace(tmp_path / "t.parquet", rows)
    config = Config(tiers={"nvme": str(target)}, is_destroying=True)
    try:
        return replay(Replay(config, trace, tmp_path / "run", [], is_forced=True))
    except DeviceError as error:
        if "refuses O_DIRECT" in str(error):
            pytest.skip(f"this kernel refuses O_DIRECT there: {error}")
        raise


def check(finished: FinishedRun, memory: str | None) -> None:
    facts = finished.run.tiers["nvme"]
    assert finished.error is None
    assert facts["memory_beneath"] == memory
    assert facts["direct_io"]["is_confirmed"] is facts["is_drive_beneath"] is (memory is None)
    said = [note for note in finished.run.notes if "in memory" in note]
    phrase = f"{facts['target']} (tier nvme) … {memory}"
    assert show_each(said, [] if memory is None else [phrase])


@pytest.mark.root
@pytest.mark.parametrize("kind", ["tmpfs", "ramfs"])
def test_a_filesystem_in_memory_is_no_drive(tmp_path: Path, places: Places, kind: str) -> None:
    point = places.mounted("m", "-t", kind, "none")
    assert (in_memory(point), is_on_drive(point)) == (kind, False)
    if kind == "tmpfs":
        # The other has no end, and says that nothing is free.
        (point / "d").mkdir()
        check(run(tmp_path, point / "d"), kind)


@pytest.mark.root
def test_loop_devices_are_followed_to_their_files(tmp_path: Path, places: Places) -> None:
    memory = places.mounted("memory", "-t", "tmpfs", "none")
    loop = places.loop(memory)
    check(run(tmp_path, loop), f"{loop.name} over tmpfs")
    command("mkfs.ext4", "-qF", loop)
    point = places.mounted("ext4", loop)
    (point / "d").mkdir()
    check(run(tmp_path, point / "d"), f"{loop.name} over tmpfs")
    second = places.loop(point)
    assert shows(in_memory(second), f"{second.name} over {loop.name} over tmpfs")


@pytest.mark.root
def test_an_overlay_is_what_its_upper_directory_is(tmp_path: Path, places: Places) -> None:
    lower = places.directory("lower")
    for name, base in (
        ("memory", places.mounted("memory", "-t", "tmpfs", "none")),
        ("disk", places.directory("disk")),
    ):
        for part in ("upper", "work", "d"):
            (base / part).mkdir()
        options = f"lowerdir={lower},upperdir={base / 'upper'},workdir={base / 'work'}"
        point = places.mounted(f"over-{name}", "-t", "overlay", "-o", options, "overlay")
        expected = "overlay over tmpfs" if name == "memory" else in_memory(tmp_path)
        assert (in_memory(point), is_on_drive(point)) == (
            expected,
            name == "disk" and is_on_drive(tmp_path),
        )


@pytest.mark.root
def test_a_loop_over_a_file_on_a_drive_is_a_drive(tmp_path: Path, places: Places) -> None:
    if not is_on_drive(tmp_path):
        pytest.skip("the temporary directory lies on no drive")
    loop = places.loop(places.directory("disk"))
    check(run(tmp_path, loop), None)


def test_a_directory_below_shared_memory_is_memory() -> None:
    if not SHARED_MEMORY.is_dir():
        pytest.skip("no /dev/shm here")
    assert in_memory(SHARED_MEMORY) == "tmpfs"
    assert not is_on_drive(SHARED_MEMORY / "absent")
