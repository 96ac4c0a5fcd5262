"""Where fields of kernel structures lie, from the running kernel's own type information (BTF).

Header files may be of another kernel than the one that runs; its BTF never is.
Source: the kernel's Documentation/bpf/btf.rst.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtrace.core.errors import ProbeUnavailable

if TYPE_CHECKING:
    from pathlib import Path

MAGIC = 0xEB9F
_HEADER = struct.Struct("<HBBIIIII")
_TYPE = struct.Struct("<III")
_STRUCT, _UNION, _ENUM = 4, 5, 6
_FIXED_BYTES = {1: 4, 3: 12, 14: 4, 17: 4}
"""What follows a type: integers, arrays, variables, declaration tags."""
_MEMBER_BYTES = {_STRUCT: 12, _UNION: 12, _ENUM: 8, 13: 8, 15: 12, 19: 12}
"""What follows a type for each member: structures, unions, enumerations, prototypes, sections."""
_BITFIELD_OFFSET = 0xFFFFFF


@dataclass(frozen=True, slots=True)
class Btf:
    """The structures that were asked for: `offsets["request.bio"]` is in bytes; and all enumerators' values."""

    offsets: dict[str, int]
    enumerators: dict[str, int]

    def offset(self, field: str) -> int:
        """Return where `field` (`structure.member`) lies; ProbeUnavailable if this kernel has none."""
        if field not in self.offsets:
            raise ProbeUnavailable(f"this kernel's BTF has no {field}; the probes need Linux 5.14 or newer")
        return self.offsets[field]


def read_btf(path: Path, structures: frozenset[str], enumerators: str) -> Btf:
    """Return the member offsets of `structures` and the enumerators that start with `enumerators`.

    Raises:
        ProbeUnavailable: the file cannot be read, or is no BTF of this byte order.

    """
    try:
        data = path.read_bytes()
        magic, _version, _flags, header_bytes, type_at, type_bytes, text_at, text_bytes = _HEADER.unpack_from(data)
    except (OSError, struct.error) as error:
        raise ProbeUnavailable(f"{path}: no BTF ({error}); use a kernel built with CONFIG_DEBUG_INFO_BTF") from None
    if magic != MAGIC:
        raise ProbeUnavailable(f"{path} is not BTF of this byte order")
    types = memoryview(data)[header_bytes + type_at : header_bytes + type_at + type_bytes]
    text = data[header_bytes + text_at : header_bytes + text_at + text_bytes]
    return _collect(types, text, structures, enumerators.encode())


def _name(text: bytes, at: int) -> str:
    return text[at : text.index(b"\0", at)].decode()


def _collect(types: memoryview, text: bytes, structures: frozenset[str], prefix: bytes) -> Btf:
    offsets: dict[str, int] = {}
    enumerators: dict[str, int] = {}
    at = 0
    while at < len(types):
        name_at, info, _size = _TYPE.unpack_from(types, at)
        at += _TYPE.size
        kind, members = info >> 24 & 0x1F, info & 0xFFFF
        if kind == _STRUCT and (name := _name(text, name_at)) in structures:
            is_bitfield = bool(info >> 31)
            for member_at in range(at, at + members * 12, 12):
                member, _type, bits = _TYPE.unpack_from(types, member_at)
                bits = bits & _BITFIELD_OFFSET if is_bitfield else bits
                # The first of two definitions of one name wins; a driver's private one comes after.
                offsets.setdefault(f"{name}.{_name(text, member)}", bits // 8)
        elif kind == _ENUM:
            for member_at in range(at, at + members * 8, 8):
                member, value = struct.unpack_from("<Ii", types, member_at)
                if text.startswith(prefix, member):
                    enumerators[_name(text, member)] = value
        at += _FIXED_BYTES.get(kind, 0) + members * _MEMBER_BYTES.get(kind, 0)
    return Btf(offsets, enumerators)
