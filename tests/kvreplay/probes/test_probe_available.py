"""Why the probes cannot run is said in one line that mends it."""

import struct

import pytest

from kvreplay.probes import available
from kvreplay.probes.available import check_available, check_headers, check_lockdown
from kvreplay.probes.program import read_btf
from kvtrace.core.errors import ProbeUnavailable


def test_headers_missing_gives_the_link_recipe(tmp_path, monkeypatch):
    monkeypatch.delenv("BCC_KERNEL_SOURCE", raising=False)
    modules = tmp_path / "9.9.9-x"
    with pytest.raises(ProbeUnavailable) as caught:
        check_headers(modules, "9.9.9-x", tmp_path / "kheaders")
    text = str(caught.value)
    assert "apt-get install linux-headers-9.9.9-x" in text
    assert f"ln -s /usr/src/linux-headers-VERSION-amd64 {modules}/build" in text
    assert f"ln -s /usr/src/linux-headers-VERSION-common {modules}/source" in text
    assert "\n" not in text
    (modules / "build").mkdir(parents=True)
    check_headers(modules, "9.9.9-x", tmp_path / "kheaders")


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
        ("os.geteuid", lambda: 1000, "run as root"),
        ("BTF", available.Path("/nonexistent/vmlinux"), "CONFIG_DEBUG_INFO_BTF"),
        ("TRACEFS", (), "mount -t tracefs"),
    ],
)
def test_each_reason_says_what_mends_it(monkeypatch, name, value, said):
    monkeypatch.setattr(available.os, "geteuid", lambda: 0)
    monkeypatch.setattr(available, "BTF", available.Path("/"))
    monkeypatch.setattr(available, "check_lockdown", lambda _path: None)
    monkeypatch.setattr(f"kvreplay.probes.available.{name}", value)
    with pytest.raises(ProbeUnavailable, match=said):
        check_available()


def _btf(kflag: int) -> bytes:
    text = b"\0request\0first\0second\0__REQ_SYNC\0OTHER\0"
    at = {name: text.index(name) for name in (b"request", b"first", b"second", b"__REQ_SYNC", b"OTHER")}
    types = struct.pack("<IIII", 0, 1 << 24, 4, 32)  # an integer, with its four bytes of extra
    types += struct.pack("<III", at[b"request"], 4 << 24 | 2 | kflag << 31, 16)
    types += struct.pack("<III", at[b"first"], 1, 0)
    types += struct.pack("<III", at[b"second"], 1, 64 | (3 << 24 if kflag else 0))
    types += struct.pack("<III", 0, 6 << 24 | 2, 4)
    types += struct.pack("<Ii", at[b"__REQ_SYNC"], 11) + struct.pack("<Ii", at[b"OTHER"], 5)
    return struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(text)) + types + text


@pytest.mark.parametrize("kflag", [0, 1])
def test_offsets_are_read_from_btf(tmp_path, kflag):
    path = tmp_path / "vmlinux"
    path.write_bytes(_btf(kflag))
    btf = read_btf(path, frozenset({"request"}), "__REQ_")
    assert btf.offsets == {"request.first": 0, "request.second": 8}
    assert btf.enumerators == {"__REQ_SYNC": 11}
    with pytest.raises(ProbeUnavailable, match=r"no request\.third"):
        btf.offset("request.third")


def test_what_is_no_btf_is_refused(tmp_path):
    path = tmp_path / "vmlinux"
    path.write_bytes(b"\x7fELF" + bytes(40))
    with pytest.raises(ProbeUnavailable, match="not BTF"):
        read_btf(path, frozenset(), "")
    path.write_bytes(b"x")
    with pytest.raises(ProbeUnavailable, match="no BTF"):
        read_btf(path, frozenset(), "")
