"""A replay by kvreplay in this process as the reference of jobs, and why there may be none."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from kvdistill_rows import write_hand

from kvdistill.jobs import reference
from kvdistill.jobs.reference import CheckStorage, NoReference, probed_program, replay_part
from kvdistill.profile.sources import distil_source
from kvreplay.run.replay import Interrupted
from kvtrace.core.errors import DeviceError, ProbeUnavailable
from kvtrace.core.limit import Limit

HOW = {"io_bytes": 1 << 20, "queue_depth": 8, "slowest_bytes_per_s": 20e6}


@pytest.fixture
def replayed(tmp_path, monkeypatch):
    """Return a function that replays the hand trace, on a disk, as root, by the given `replay`."""

    def run(replay, disk="/dev/vda"):
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        monkeypatch.setattr("kvreplay.run.replay.replay", replay)
        trace = write_hand(tmp_path)
        part = distil_source(trace, "nvme", Limit(), tmp_path)
        return replay_part(trace, part, tmp_path, CheckStorage(disk), **HOW)

    return run


def ended(*, is_measured=True, reason=None, fell_behind=False, error=None):
    """Return a `replay` that gives a run which ended so."""
    probes = SimpleNamespace(is_measured=is_measured, reason=reason)
    summary = SimpleNamespace(fell_behind=fell_behind, verdict="its verdict")
    run = SimpleNamespace(probes=probes, summary=summary)
    return lambda *_args, **_kwargs: SimpleNamespace(run=run, summary=summary, error=error)


def refused(error):
    def replay(*_args, **_kwargs):
        raise error

    return replay


@pytest.mark.parametrize(
    ("replay", "missing"),
    [
        (ended(), None),
        (ended(is_measured=False, reason="no libbpf"), NoReference.PROBES_LEFT_OUT),
        (ended(fell_behind=True), NoReference.FELL_BEHIND),
        (ended(error=DeviceError("full")), NoReference.REPLAY_FAILED),
        (refused(DeviceError("full")), NoReference.REPLAY_FAILED),
    ],
)
def test_the_result_says_why_there_is_no_reference(replayed, replay, missing):
    found = replayed(replay)
    assert found.missing is missing
    assert (found.blocks is None) is (missing is not None)
    assert found.message


def test_without_a_device_or_root_nothing_is_replayed(replayed, tmp_path, monkeypatch):
    never = refused(AssertionError("not to be called"))
    assert replayed(never, disk=None).missing is NoReference.NO_DEVICE
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    part = distil_source(tmp_path / "hand.parquet", "nvme", Limit(), tmp_path)
    found = replay_part(tmp_path / "hand.parquet", part, tmp_path, CheckStorage("/dev/vda"), **HOW)
    assert found.missing is NoReference.NO_ROOT


def test_a_user_who_stops_the_replay_stops_the_check(replayed):
    with pytest.raises(Interrupted):
        replayed(ended(error=Interrupted("interrupted by SIGINT")))


def test_a_replay_that_its_limit_ended_is_too_slow(replayed, monkeypatch):
    monkeypatch.setattr(reference, "monotonic", iter([0.0, 1e9, 1e9]).__next__)
    found = replayed(ended(error=Interrupted("interrupted by its time limit")))
    assert found.missing is NoReference.TOO_SLOW


def test_probes_that_are_refused_run_nothing(tmp_path):
    """A folder is no disk: the reason comes before the context begins."""
    with pytest.raises(ProbeUnavailable), probed_program("fio1", tmp_path, tmp_path / "out"):
        pytest.fail("the context began without probes")
    assert not (tmp_path / "out").exists()
