"""A tree of kernel headers for BCC, on machines that have headers of another kernel than theirs.

The headers are those of a package; the structures that the probes read are laid as the running
kernel's BTF has them.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path

PROBES = Path(__file__).parents[2] / "kvreplay" / "probes"
BTF = Path("/sys/kernel/btf/vmlinux")
REPLACED = ("blkdev", "blk-mq", "fdtable", "fs", "io_uring_types", "sched")
_PART_BYTES = {1: 4, 3: 12, 14: 4, 17: 4}
_MEMBER_BYTES = {4: 12, 5: 12, 6: 8, 13: 8, 15: 12, 19: 12}
"""Behind a type, by its kind (include/uapi/linux/btf.h).

So many bytes, or so many for each member.
"""


def offsets(data: bytes) -> dict[str, dict[str, int]]:
    """Return the offset of each member of each structure in `data`, of BTF."""
    _magic, header, types_at, types, names_at, _names = struct.unpack_from("<I5I", data)
    names = data[header + names_at :]
    at, end = header + types_at, header + types_at + types
    found: list[tuple[str, list[tuple[str, int, int]]]] = [("", [])]

    def name(offset: int) -> str:
        return names[offset : names.index(b"\0", offset)].decode()

    while at < end:
        named, info, _ = struct.unpack_from("<3I", data, at)
        kind, count, has_bits = info >> 24 & 31, info & 0xFFFF, info >> 31
        at += 12
        members = []
        if kind in (4, 5):
            for n, type_, bits in (
                struct.unpack_from("<3I", data, at + 12 * i) for i in range(count)
            ):
                members.append((name(n), type_, (bits & 0xFFFFFF if has_bits else bits) // 8))
        found.append((name(named) if kind == 4 else "", members))
        at += _PART_BYTES.get(kind, 0) + _MEMBER_BYTES.get(kind, 0) * count

    def flat(members: list[tuple[str, int, int]]) -> dict[str, int]:
        inner = [
            {k: off + v for k, v in flat(found[type_][1]).items()}
            for n, type_, off in members
            if not n
        ]
        return {n: off for n, _, off in members if n} | {
            k: v for part in inner for k, v in part.items()
        }

    return {name: flat(members) for name, members in found if name}


def structures() -> str:
    """Return the structures that kernel.bpf.h names, with their members where the running kernel
    has them.
    """
    at, text = offsets(BTF.read_bytes()), (PROBES / "kernel.bpf.h").read_text(encoding="utf-8")
    parts = re.findall(r"^enum \w+ \{.*?\};", text, re.MULTILINE)
    for name, body in re.findall(
        r"^struct (\w+) \{(.*?)\} RELOCATED;", text, re.MULTILINE | re.DOTALL
    ):
        members = []
        for declared in filter(None, map(str.strip, body.split(";"))):
            kind, rest = re.fullmatch(r"((?:struct |enum |unsigned )?\w+) (.*)", declared).groups()
            for member in rest.split(","):
                of = re.search(r"\w+", member)[0]
                members.append(
                    f"struct {{ char at_{of}[{at[name][of]}]; {kind} {member.strip()}; }}"
                    " __attribute__((packed));"
                )
        parts.append(f"struct {name} {{ union {{\n" + "\n".join(members) + "\n}; };")
    return "#pragma once\n#include <linux/types.h>\n" + "\n".join(parts) + "\n"


def tree(at: Path, flags: list[str], packages: Path = Path("/usr/src")) -> Path | None:
    """Make the tree in `at`, with the kernel's `flags` of requests.

    Return it, or None without a package of headers.
    """
    sources = [*packages.glob("linux-headers-*-common"), *packages.glob("linux-headers-*-amd64")]
    if len(sources) < 2:
        return None
    for source in sources:
        for folder in ("include", "arch/x86/include"):
            for path in (source / folder).glob("*/*"):
                to = at / path.relative_to(source)
                to.parent.mkdir(parents=True, exist_ok=True)
                if not to.exists():
                    to.symlink_to(path)
    for name in REPLACED:
        header = at / "include" / "linux" / f"{name}.h"
        header.unlink(missing_ok=True)
        header.write_text('#include "kvreplay.h"\n', encoding="utf-8")
    (at / "include" / "linux" / "kvreplay.h").write_text(structures(), encoding="utf-8")
    bits = at / "include" / "linux" / "blk_types.h"
    bits.unlink()
    bits.write_text(
        "enum req_flag_bits {\n" + "".join(f"\t{name},\n" for name in flags) + "};\n",
        encoding="utf-8",
    )
    return at
