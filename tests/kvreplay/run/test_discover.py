"""What a machine is said to have, and which of it is warned of."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from conftest import run_cli
from phrases import Saying, shows

from kvreplay.run import discover as module
from kvreplay.run.discover import Discovery, Filesystem, FoundDrive, discover, recommended, warnings

if TYPE_CHECKING:
    from pathlib import Path


def machine(**fields: Any) -> Discovery:
    """Return a machine that nothing is wrong with, but for `fields`."""
    drive = FoundDrive(
        name="nvme0n1",
        model="M",
        firmware="1",
        bytes=10**12,
        is_rotational=False,
        scheduler="none",
        queue_requests=1023,
        write_cache="write back",
    )
    data = Filesystem(
        mount_point="/data", device="/dev/nvme0n1", kind="xfs", options=["rw"], free_bytes=10**11
    )
    good: dict[str, Any] = {
        "host": {"cpus": 8, "cpu_model": "C", "kernel": "6"},
        "governor": "performance",
        "load_1min": 0.1,
        "memory_bytes": 64 << 30,
        "available_bytes": 60 << 30,
        "swap_used_bytes": 0,
        "huge_pages": "madvise",
        "gpus": [],
        "gpu_reason": "none",
        "drives": [drive],
        "filesystems": [data],
        "limits": {"memlock_bytes": None, "open_files": 65_536},
        "is_root": False,
        "io_uring": "available",
        "programs": {"fio": None, "smartctl": "/usr/sbin/smartctl", "nvme": None},
        "warnings": [],
        "gpu_libraries": {"kvikio": None},
        "probes": "available",
        "recommended": {},
    }
    return Discovery(**(good | fields))


def test_a_good_machine_has_no_warning() -> None:
    assert warnings(machine()) == []
    assert recommended(machine()) == {
        "engine": "uring",
        "io_bytes": 1 << 20,
        "queue_depth": 32,
        "cpu_tier_bytes": 30 << 30,
        "storage_directory_on": "/data",
        "trials": 3,
        "next": Saying("kvreplay sweep"),
    }


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"load_1min": 2.5}, "busy: … 2.50 … 8 processors"),
        ({"governor": "powersave"}, "governor powersave"),
        ({"swap_used_bytes": 1 << 30}, "1.07 GB of swap"),
        ({"huge_pages": "never"}, "huge pages"),
        ({"limits": {"memlock_bytes": 8 << 20, "open_files": None}}, "memlock limit 8.39 MB"),
        (
            {"limits": {"memlock_bytes": None, "open_files": 1024}},
            "1,024",
        ),
        ({"io_uring": "seccomp forbids it"}, "no io_uring (seccomp forbids it)"),
        ({"programs": {"smartctl": None, "nvme": None}}, "neither smartctl nor nvme"),
    ],
)
def test_each_thing_that_spoils_a_run_is_named(fields: dict[str, Any], message: str) -> None:
    (line,) = warnings(machine(**fields))
    assert shows(line, message)


def test_storage_that_spoils_a_run_is_named() -> None:
    drive = msgspec.structs.replace(machine().drives[0], scheduler="bfq", is_rotational=True)
    disk = msgspec.structs.replace(
        machine().filesystems[0], options=["rw", "discard"], mount_point="/"
    )
    found = warnings(machine(drives=[drive], filesystems=[disk]))
    assert [line.split(";")[0].split(":")[0] for line in found] == [
        Saying("nvme0n1 … rotational"),
        Saying("nvme0n1 … bfq"),
        Saying("discard"),
        Saying("own filesystem"),
    ]
    assert recommended(machine(io_uring="no", drives=[], available_bytes=None)) | {"next": ""} == {
        "engine": "threads",
        "io_bytes": 1 << 20,
        "queue_depth": 8,
        "cpu_tier_bytes": None,
        "storage_directory_on": "/data",
        "trials": 3,
        "next": "",
    }


def test_root_needs_no_memlock() -> None:
    assert (
        warnings(machine(limits={"memlock_bytes": 8 << 20, "open_files": None}, is_root=True)) == []
    )


def test_drives_are_read_from_sys(tmp_path: Path) -> None:
    for path, text in {
        "sys/block/nvme0n1/size": "2000",
        "sys/block/nvme0n1/device/model": "Fast 1",
        "sys/block/loop0/size": "8",
        "sys/block/nvme0n1/device/firmware_rev": "FW1",
        "sys/block/nvme0n1/queue/rotational": "0",
        "sys/block/nvme0n1/queue/scheduler": "[none] mq-deadline",
        "sys/block/nvme0n1/queue/nr_requests": "1023",
        "sys/block/sr0/size": "8",
        "sys/block/sda/size": "0",
        "proc/meminfo": "MemTotal: 1024 kB\nSwapTotal: 8 kB\nSwapFree: 6 kB\n",
        "proc/self/mounts": (
            "/dev/x /a\\040b ext4 rw,discard 0 0\n/dev/x /b ext4 rw 0 0\ntmpfs /t tmpfs rw 0 0\n"
        ),
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    found = discover(tmp_path)
    assert found.drives == [
        FoundDrive(
            name="nvme0n1",
            model="Fast 1",
            firmware="FW1",
            bytes=1_024_000,
            is_rotational=False,
            scheduler="none",
            queue_requests=1023,
            write_cache=None,
        )
    ]
    assert (found.memory_bytes, found.swap_used_bytes, found.huge_pages) == (
        1 << 20,
        2048,
        "madvise",
    )
    assert [(f.mount_point, f.options) for f in found.filesystems] == [("/a b", ["rw", "discard"])]


def test_gpus_are_what_nvidia_smi_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert module._gpus() == ([], Saying("nvidia-smi"))
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771, 570.1'\n")
    tool.chmod(0o755)
    (gpu,), reason = module._gpus()
    assert (gpu.name, gpu.memory_bytes, gpu.driver, reason) == (
        "NVIDIA H200",
        143_771 << 20,
        "570.1",
        None,
    )
    tool.write_text("#!/bin/sh\necho 'no devices'; exit 6\n")
    assert module._gpus() == ([], "nvidia-smi: no devices")


@pytest.mark.full
def test_the_command_prints_this_machine() -> None:
    shown = run_cli("kvreplay", "discover").stdout
    assert "start from: --engine " in shown
    found = json.loads(run_cli("kvreplay", "discover", "--json").stdout)
    assert found["host"]["cpus"] >= 1
    assert all(line in shown for line in found["warnings"] if "busy" not in line)
