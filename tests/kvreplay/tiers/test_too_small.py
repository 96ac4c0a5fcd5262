"""A target without room is refused with a limit, and a tier, that fit."""

import re
import shutil

import pytest

import kvreplay
import kvtrace as kt
from kvreplay.tiers import directio
from kvtrace.core.errors import DeviceError
from kvtrace.core.units import parse_bytes

FREE_BYTES = 100_000_000
TIERS = {"gpu": {"capacity": "64MiB"}, "cpu": {"capacity": "64MiB"}}


def simulated(nvme_capacity):
    return kt.simulate(
        preset="lmcache-disk", model="tiny-1b", users=4, duration="10s", gpu="instant",
        tiers=TIERS | {"nvme": {"capacity": nvme_capacity}},
    )  # fmt: skip


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Return a folder with little free space, as far as the replay sees."""
    usage = shutil.disk_usage(tmp_path)._replace(free=FREE_BYTES)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)
    return tmp_path


def refusal(trace, folder, **given):
    with pytest.raises(DeviceError) as error:
        kvreplay.replay(trace, tiers={"nvme": folder}, **given)
    return str(error.value)


@pytest.mark.parametrize(("window", "share"), [("all", 0.9), ("steady:1s", 0.45)])
def test_the_limit_of_a_refusal_fits(small, window, share):
    trace = simulated("512MiB")
    message = refusal(trace, small, window=window)
    limit = re.search(r"limit=(\d+MB)", message)[1]
    assert parse_bytes(limit) == FREE_BYTES * share
    run = kvreplay.replay(trace, tiers={"nvme": small}, window=window, limit=limit)
    assert run.figures().height > 0


def test_the_tier_of_a_refusal_fits(small):
    capacity = re.search(r"tiers\.nvme\.capacity=(\w+)", refusal(simulated("512MiB"), small))[1]
    run = kvreplay.replay(simulated(capacity), tiers={"nvme": small})
    assert run.figures().height > 0


def test_a_file_leaves_a_hundredth_of_its_filesystem(small, monkeypatch):
    sizes, allocate = [], directio.allocate
    monkeypatch.setattr(
        directio, "allocate", lambda fd, size: (sizes.append(size), allocate(fd, size))
    )
    kvreplay.replay(simulated("90MB"), tiers={"nvme": small / "tier.dat"})
    # Its peak of 90 MB and a quarter more would be all that is free.
    (size,) = sizes
    assert 80_000_000 < size <= 0.99 * FREE_BYTES


def test_tiers_that_share_a_filesystem_get_a_limit(small):
    for name in ("nvme", "cpu"):
        (small / name).mkdir()
    tiers = {name: small / name for name in ("nvme", "cpu")}
    with pytest.raises(DeviceError) as error:
        kvreplay.replay(simulated("512MiB"), tiers=tiers)
    assert "limit=90MB" in str(error.value)
    assert "capacity" not in str(error.value)
    kvreplay.replay(simulated("512MiB"), tiers=tiers, limit="90MB")
