"""Which NUMA node a drive is attached to, by what /sys says of it, and the processors of that node."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvreplay.engine import share as sharing
from kvreplay.engine.share import Share
from kvreplay.tiers.host import node_cpus, node_of, numa_node


def disk(sysfs: Path, at: str) -> Path:
    """Return a disk at `at`."""
    (sysfs / at / "queue").mkdir(parents=True)
    return sysfs / at


def attached(sysfs: Path, number: int, node: str) -> Path:
    """Return the NVMe disk of this number, whose PCI device is on the NUMA node `node`."""
    made = disk(sysfs, f"pci/{number}/nvme/nvme{number}/nvme{number}n1")
    (sysfs / f"pci/{number}/numa_node").write_text(f"{node}\n")
    return made


def built_on(sysfs: Path, name: str, *below: Path) -> Path:
    """Return a disk of dm or md."""
    made = disk(sysfs, f"virtual/block/{name}")
    (made / "slaves").mkdir()
    for one in below:
        (made / "slaves" / one.name).symlink_to(one)
    return made


def test_a_drive_lies_where_the_device_above_it_does(tmp_path: Path) -> None:
    one, other, unknown = (
        attached(tmp_path, number, node) for number, node in enumerate(("1", "0", "-1"))
    )
    part = one / "nvme0n1p2"
    part.mkdir()
    assert [node_of(at) for at in (one, part, other, unknown)] == [1, 1, 0, None]
    assert node_of(disk(tmp_path, "virtual/block/loop9")) is None
    # dm and md lie on a node if all beneath them do.
    assert node_of(built_on(tmp_path, "dm-0", part)) == 1
    md = built_on(tmp_path, "md0", built_on(tmp_path, "dm-1", one), part)
    (md / "md0p1").mkdir()
    assert (node_of(md), node_of(md / "md0p1")) == (1, 1)
    assert node_of(built_on(tmp_path, "md1", one, other)) is None
    assert node_of(built_on(tmp_path, "md2", one, unknown)) is None


def test_a_drive_of_several_controllers_lies_where_they_do(tmp_path: Path) -> None:
    shared = disk(tmp_path, "virtual/nvme-subsystem/nvme-subsys0/nvme0n1")
    for number in range(2):
        (shared.parent / f"nvme{number}").symlink_to(attached(tmp_path, number, "1").parent)
    assert node_of(shared) == 1
    (tmp_path / "pci/1/numa_node").write_text("0")
    assert node_of(shared) is None


def test_what_is_no_drive_lies_on_no_node(tmp_path: Path) -> None:
    assert numa_node(tmp_path / "absent") is None
    assert numa_node(Path("/proc")) is None


def test_only_one_of_several_nodes_has_nearer_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "node0").mkdir()
    (tmp_path / "node0/cpulist").write_text("0-2,8\n")
    assert node_cpus(0, tmp_path) is None
    (tmp_path / "node1").mkdir()
    (tmp_path / "node1/cpulist").write_text("\n")
    assert node_cpus(0, tmp_path) == {0, 1, 2, 8}
    assert node_cpus(1, tmp_path) == set()
    assert node_cpus(2, tmp_path) is None
    nodes = {"a": 0, "b": 0, "c": 1, "d": None}
    monkeypatch.setattr(sharing, "numa_node", lambda target: nodes[target.name])
    monkeypatch.setattr(sharing, "node_cpus", lambda node: node_cpus(node, tmp_path))
    monkeypatch.setattr(sharing.os, "sched_getaffinity", lambda _pid: {1, 2, 3})
    share = Share("asked", (), (("a", "b"), ("a", "c"), ("d",), ("c",)))
    assert [share.node(ring) for ring in range(4)] == [0, None, None, 1]
    # A thread is bound to those near its drives that we may use; where there are none, not at all.
    assert [share.cpus(ring) for ring in range(4)] == [{1, 2}, None, None, None]
