"""Which engine a run gets, and what is said where it gets none."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from phrases import Saying, shows
from rings import IO, PythonFiles, files_in, needs_uring

from kvreplay.engine import native_engine as engines
from kvreplay.engine.native_engine import EngineName, choose
from kvreplay.tiers.modelled import Service, SimulatedTier
from kvreplay.tiers.ram import RamTier
from kvtrace.core.errors import DeviceError

MODEL = Service(read_bytes_per_s=1, write_bytes_per_s=1, latency_ns=0, source="test")


@needs_uring
def test_auto_takes_what_there_is_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with files_in(tmp_path / "d") as tier:
        chosen = choose(EngineName.AUTO, [None, tier], 2, IO)
        assert (chosen.name, chosen.because, tier.engine) == ("uring", "auto", "uring")
        chosen = choose(EngineName.THREADS, [tier], 2, IO)
        assert (chosen.name, chosen.because, tier.engine) == (
            "threads",
            "--engine threads",
            "threads",
        )
        monkeypatch.setattr("kvreplay.engine.native_engine.refusal", lambda: "sysctl says no")
        chosen = choose(EngineName.AUTO, [tier], 2, IO)
        assert (chosen.name, chosen.because, tier.engine) == (
            "threads",
            Saying("io_uring:"),
            "threads",
        )
        assert chosen.facts() == {}
        with pytest.raises(DeviceError, match=r"engine=uring:.*engine=threads"):
            choose(EngineName.URING, [tier], 2, IO)


@needs_uring
@pytest.mark.parametrize("kind", ["python", "model", "memory", "verified", "null", "none"])
def test_threads_serve_targets_without_rings_unless_asked(kind: str) -> None:
    tiers = {
        "python": PythonFiles(),
        "model": SimulatedTier("sim", MODEL),
        "memory": RamTier("cpu", IO),
        "verified": RamTier("cpu", IO, is_verified=True),
        "null": SimulatedTier("null"),
        "none": None,
    }
    chosen = choose(EngineName.AUTO, [None, tiers[kind]], 2, IO)
    said = Saying("for which io_uring is used")
    virtual = Saying("simulated")
    expected = {"python": ("threads", said), "model": ("virtual", virtual)}.get(
        kind, ("uring", "auto")
    )
    assert (chosen.name, chosen.because) == expected
    beside = choose(EngineName.AUTO, [tiers["model"], tiers[kind]], 2, IO)
    assert (beside.name == "virtual") == (kind in ("model", "null", "none")), (
        "what is real takes real time"
    )
    asked = choose(EngineName.URING, [None, tiers[kind]], 2, IO)
    assert (asked.name, asked.because) == ("uring", "--engine uring")


def test_a_refusal_names_its_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = iter([errno.EPERM, errno.EPERM, errno.ENOSYS, errno.ENOMEM, -1, -2, errno.EINVAL, 0])

    class Kernel:
        ring_probe = staticmethod(lambda: next(codes))

    monkeypatch.setattr(engines, "library", Kernel)
    monkeypatch.setattr(engines, "_DISABLED", tmp_path / "sysctl")
    assert shows(engines.refusal(), "not permitted")
    (tmp_path / "sysctl").write_text("2\n")
    assert engines.refusal() == "sysctl kernel.io_uring_disabled=2 forbids io_uring"
    said = [engines.refusal() for _ in range(6)]
    assert shows(said[0], "without io_uring")
    assert shows(said[1], "ulimit -l")
    assert "5.19" in str(said[2])
    assert "file tables" in str(said[3])
    assert said[4:] == ["io_uring_setup: Invalid argument", None]
