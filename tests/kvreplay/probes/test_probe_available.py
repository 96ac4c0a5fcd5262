"""Why the probes cannot run is said in one line that mends it."""

import hashlib

import pytest

from kvreplay.probes import libbpf
from kvreplay.probes.libbpf import (
    OBJECT,
    check_available,
    check_lockdown,
    library,
    missing,
    unseen_calls,
    uring_offsets,
)
from kvtrace.core.errors import ProbeUnavailable


def test_lockdown_is_named(tmp_path):
    state = tmp_path / "lockdown"
    check_lockdown(state)
    state.write_text("none [integrity] confidentiality\n")
    check_lockdown(state)
    state.write_text("none integrity [confidentiality]\n")
    with pytest.raises(ProbeUnavailable, match="lockdown=integrity"):
        check_lockdown(state)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("os.geteuid", lambda: 1000, "root"),
        ("BTF", libbpf.Path("/nonexistent/vmlinux"), "CONFIG_DEBUG_INFO_BTF"),
        ("TRACEFS", (), "mount -t tracefs"),
        ("library", lambda: library.__wrapped__("libnone.so.1"), "apt-get install libbpf1"),
    ],
)
def test_each_reason_says_what_mends_it(monkeypatch, name, value, said):
    monkeypatch.setattr(libbpf.os, "geteuid", lambda: 0)
    monkeypatch.setattr(libbpf, "BTF", libbpf.Path("/"))
    monkeypatch.setattr(libbpf, "check_lockdown", lambda _path: None)
    if name != "TRACEFS":  # checked before the others, and not mounted on every machine
        monkeypatch.setattr(libbpf, "tracefs", lambda: libbpf.Path("/"))
    monkeypatch.setattr(f"kvreplay.probes.libbpf.{name}", value)
    with pytest.raises(ProbeUnavailable, match=said):
        check_available()


def test_a_device_without_root_is_not_called_unreadable(tmp_path, monkeypatch, capsys):
    """Who may not read a device learns what the probes need, and not only that."""
    from kvreplay import cli

    monkeypatch.setattr(libbpf.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(libbpf.os, "access", lambda _path, _mode: False)
    monkeypatch.setattr(
        "sys.argv", ["kvreplay", "probe", "--dev", "/dev/null", "-o", str(tmp_path / "out")]
    )
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == ProbeUnavailable.exit_code
    assert "root" in capsys.readouterr().err


def test_the_object_is_of_the_sources_beside_it():
    """Whoever changes the C runs `make bpf`."""
    folder = OBJECT.parent
    files = [*sorted(folder.glob("*.bpf.c")), *sorted(folder.glob("*.bpf.h"))]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    assert digest.encode() in OBJECT.read_bytes()


@pytest.fixture
def events(tmp_path):
    """The tracepoints of a kernel of today."""
    for name in (
        *(
            "block/block_io_start",
            "block/block_rq_insert",
            "block/block_rq_issue",
            "syscalls/sys_enter_pread64",
        ),
        *(
            "syscalls/sys_enter_io_submit",
            "io_uring/io_uring_submit_req",
            "io_uring/io_uring_complete",
        ),
    ):
        (tmp_path / name).mkdir(parents=True)
    for name, fields in (
        ("submit_req", [("void * req", 16)]),
        ("complete", [("void * req", 16), ("int res", 32)]),
    ):
        text = "".join(
            f"\tfield:{field};\toffset:{at};\tsize:8;\tsigned:0;\n" for field, at in fields
        )
        (tmp_path / f"io_uring/io_uring_{name}" / "format").write_text(text)
    return tmp_path


SECTIONS = {
    "block_io_start": "tp_btf/block_io_start",
    "block_rq_insert": "tp_btf/block_rq_insert",
    "block_rq_issue": "tp_btf/block_rq_issue",
    "block_rq_issue_first": "tp_btf/block_rq_issue",
    "enter_pread64": "tp/syscalls/sys_enter_pread64",
    "enter_io_submit": "tp/syscalls/sys_enter_io_submit",
}


def test_programs_without_their_tracepoints_are_left_out(events):
    assert missing(SECTIONS, events) == {"block_rq_insert", "block_rq_issue_first"}
    (events / "block/block_io_start").rmdir()
    (events / "syscalls/sys_enter_io_submit").rmdir()
    assert missing(SECTIONS, events) == {"block_io_start", "block_rq_issue", "enter_io_submit"}


def test_io_uring_is_probed_where_tracepoints_have_the_request(events):
    assert uring_offsets(events) == {
        "uring_submitted_at": 16,
        "uring_req_at": 16,
        "uring_result_at": 32,
    }
    assert unseen_calls(events) == ()
    (events / "io_uring/io_uring_complete/format").write_text("\tfield:int res;\toffset:32;\n")
    assert uring_offsets(events) is None
    assert unseen_calls(events) == ("io_uring",)
    (events / "syscalls/sys_enter_pread64").rmdir()
    assert unseen_calls(events) is None
