"""Block devices by their numbers, also where a container hides /sys/dev/block."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kvtrace.core.mounts import block_directories, block_directory

NUMBERS = {"sda": "8:0", "sda1": "8:1"}


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    """/sys as a host shows it."""
    for name, number in NUMBERS.items():
        device = tmp_path / "devices" / name
        device.mkdir(parents=True)
        (device / "dev").write_text(f"{number}\n")
        for link in (tmp_path / "dev/block" / number, tmp_path / "class/block" / name):
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(device)
    return tmp_path


def hide_nothing(_sys: Path) -> None:
    """A host."""


def hide_all_links(sys: Path) -> None:
    """A container that mounts an empty folder there."""
    for link in (sys / "dev/block").iterdir():
        link.unlink()


def hide_folder(sys: Path) -> None:
    """A container that lets nothing there be read; to root, a file in its place looks the same."""
    hide_all_links(sys)
    (sys / "dev/block").rmdir()
    (sys / "dev/block").touch()


@pytest.mark.parametrize("hide", [hide_nothing, hide_all_links, hide_folder])
def test_devices_are_found_by_their_numbers(shown, hide):
    hide(shown)
    devices = {number: shown / "devices" / name for name, number in NUMBERS.items()}
    assert block_directories(shown) == devices
    assert {number: block_directory(number, shown) for number in NUMBERS.values()} == devices
    assert block_directory("8:2", shown) is None
    assert block_directory("0:26", shown) is None


def test_a_system_without_block_devices_has_none(tmp_path):
    assert block_directories(tmp_path) == {}
    assert block_directory("8:0", tmp_path) is None


FACTS = """
import sys
from pathlib import Path
from kvreplay.tiers.claims import _disks_below_root
from kvreplay.tiers.host import filesystem_facts
print(filesystem_facts(Path(sys.argv[1])), _disks_below_root(Path("/sys")))
"""


@pytest.mark.root
def test_a_hidden_folder_changes_no_facts(tmp_path):
    # The disk of / must be known there, too, because it is refused as a target.
    command = [sys.executable, "-c", FACTS, str(tmp_path)]
    outside = subprocess.run(command, capture_output=True, text=True, check=True)
    hidden = 'mount -t tmpfs -o mode=0 tmpfs /sys/dev/block && exec "$@"'
    inside = subprocess.run(
        ["unshare", "--mount", "sh", "-c", hidden, "sh", *command],
        capture_output=True,
        text=True,
        check=False,
    )
    if inside.returncode and "unshare" in inside.stderr:
        pytest.skip(f"no mount namespace: {inside.stderr}")
    assert inside.stdout == outside.stdout
