"""C structs as Python creates and reads them. Their layout comes from the C headers alone.

    WORLD = header(Path("world.h"))
    tiers = np.zeros(3, WORLD.dtype("Tier"))            # NumPy records
    drive = REPLAY.struct("Drive")(fd=3)                # a ctypes struct
    world = Structure(WORLD, "World", tiers=tiers)      # TABLE(Tier, tiers): in C a pointer and a count
    world.log = np.zeros(9, ...)                        # a pointer: an array, a Structure, or a number
    world.knobs.seed = 42                               # a struct within this struct

A header may use structs, enums, numbers by #define, TABLE, integers of <stdint.h> or the kernel,
double, bool, arrays of constant lengths, and pointers, which Python treats as addresses. If a
header uses structs of another header as members, name that one, too.
"""

from __future__ import annotations

import ctypes
import functools
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kvtrace.core.json_types import JsonObject

_NUMBERS: JsonObject = {
    name: getattr(ctypes, f"c_{name.removesuffix('_t')}")
    for name in (
        *(f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)),
        "double",
        "bool",
    )
}
_NUMBERS |= {
    f"{'u' if sign else 's'}{bits}": _NUMBERS[f"{sign}int{bits}_t"]
    for sign in ("", "u")
    for bits in (16, 32, 64)
}
_COMMENT = re.compile(r"//[^\n]*|^#[^\n]*|/\*.*?\*/", re.MULTILINE | re.DOTALL)
_DEFINE = re.compile(r"^#define (\w+) (\d+)$", re.MULTILINE)
_STRUCT = re.compile(
    r"(?:typedef\s+struct(?:\s+\w+)?\s*\{([^}]*)\}\s*(\w+)|struct\s+(\w+)\s*\{([^}]*)\}"
    r"(?:\s*__attribute__[^;]*)?)\s*;"
)
_ENUM = re.compile(r"enum\s*(\w*)\s*\{([^}]*)\}\s*(\w*)\s*;")
_TABLE = re.compile(r"TABLE\((\w+),\s*(\w+)\)")
_FIELDS = re.compile(r"(?:(?:const|struct|_Atomic)\s+)*(\w+)\s*([^;]+);")
_DECLARED = re.compile(r"(?:const)?\s*(\**)(?:const )?(?:\*)?(\w+)((?:\[\w+\])*)$")


class _Field(NamedTuple):
    name: str
    kind: str
    is_pointer: bool
    lengths: tuple[int, ...]
    """Lengths of an array, in C's order."""


class CHeader:
    """The structs and constants of C headers, by name."""

    def __init__(self, text: str) -> None:
        self.constants = {name: int(value) for name, value in _DEFINE.findall(text)}
        self.enums: dict[str, list[str]] = {}
        """The names of each enumeration that has one."""
        text = _COMMENT.sub("", text)
        self._kinds = dict(_NUMBERS)
        for tag, body, kind in _ENUM.findall(text):
            members = [member.partition("=") for member in body.split(",") if member.strip()]
            self.enums[tag or kind] = [member.strip() for member, _, _ in members]
            value = -1
            for member, _, expression in members:
                if expression and not expression.strip().lstrip("-").isdigit():
                    break  # only C can evaluate it and the values that follow
                value = int(expression) if expression else value + 1
                self.constants[member.strip()] = value
            self._kinds[kind] = ctypes.c_int32
        self.fields: dict[str, list[_Field]] = {}
        self.tables: dict[str, dict[str, str]] = {}
        for match in _STRUCT.finditer(text):
            name, body = match[2] or match[3], match[1] or match[4]
            self.tables[name] = {table: kind for kind, table in _TABLE.findall(body)}
            fields = self.fields[name] = []
            for kind, names in _FIELDS.findall(_TABLE.sub(r"\1 *\2; int64_t \2_count", body)):
                for declared in names.split(","):
                    if m := _DECLARED.match(declared.strip()):
                        lengths = tuple(
                            self.constants.get(n) or int(n) for n in re.findall(r"\w+", m[3])
                        )
                        fields.append(_Field(m[2], kind, bool(m[1]), lengths))

    @functools.cache  # noqa: B019 - headers are few, and stay
    def struct(self, name: str) -> Any:
        """Return a struct as a ctypes class."""
        if name in self._kinds:
            return self._kinds[name]
        fields = []
        for field in self.fields[name]:
            kind = ctypes.c_void_p if field.is_pointer else self.struct(field.kind)
            for length in reversed(field.lengths):
                kind *= length
            fields.append((field.name, kind))
        return type(name, (ctypes.Structure,), {"_fields_": fields})

    @functools.cache  # noqa: B019
    def dtype(self, name: str) -> np.dtype[Any]:
        """Return a struct, or a number, as a NumPy dtype."""
        dtype: np.dtype[Any] = np.dtype(self.struct(name))
        return dtype


@functools.cache
def header(*paths: Path) -> CHeader:
    """Return the structs and constants of the headers at `paths`, which are read in this order."""
    return CHeader("\n".join(path.read_text(encoding="utf-8") for path in paths))


class Structure:
    """A C struct in memory that Python owns, with the arrays that its tables point to."""

    address: int
    """Its address, for C."""
    arrays: JsonObject
    """By name of a table or pointer: the array or Structure that it points to."""

    def __init__(
        self,
        header: CHeader,
        kind: str,
        member_of: tuple[Structure, str] | None = None,
        /,
        **fields: Any,
    ) -> None:
        """Allocate a struct of zeros and set `fields`. All other tables are empty.

        With `member_of`, an outer struct and the name of its member, use the member's memory.
        """
        if member_of is None:
            records = np.zeros(1, header.dtype(kind))
            memory, memory_address = records[0], records.ctypes.data
        else:
            outer, member = member_of
            memory = outer.memory[member]
            memory_address = outer.address + outer.memory.dtype.fields[member][1]
        # Not by attributes, which __setattr__ stores in the struct.
        self.__dict__.update(memory=memory, address=memory_address, arrays={})
        tables = {name: header.dtype(item) for name, item in header.tables[kind].items()}
        inner_structs = {
            field.name: Structure(header, field.kind, (self, field.name))
            for field in header.fields[kind]
            if field.kind in header.fields and not field.is_pointer
        }
        self.__dict__.update(tables=tables, inner_structs=inner_structs)
        self.set(**{name: np.zeros(0, dtype) for name, dtype in tables.items()} | fields)

    def set(self, **fields: Any) -> None:
        """Set fields by name."""
        for name, value in fields.items():
            setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:
        if name in self.arrays:
            return self.arrays[name]
        if name in self.inner_structs:
            return self.inner_structs[name]
        try:
            value = self.memory[name]
        except (KeyError, ValueError):
            raise AttributeError(f"no field {name!r}") from None
        return value if value.ndim else value.item()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.tables:
            array = np.ascontiguousarray(value, self.tables[name])
            self.arrays[name] = array
            self.memory[name], self.memory[f"{name}_count"] = array.ctypes.data, array.size
        elif name in self.inner_structs or name not in (self.memory.dtype.names or ()):
            raise AttributeError(f"{name!r} cannot be set")
        elif (isinstance(value, np.ndarray) and not self.memory[name].ndim) or isinstance(
            value, Structure
        ):
            self.arrays[name] = value
            self.memory[name] = address(value)
        else:
            self.memory[name] = value


def address(memory: Any) -> int:
    """Return the address of a contiguous array or of a Structure; 0 for None."""
    if memory is None:
        return 0
    if isinstance(memory, Structure):
        return memory.address
    if not memory.flags.c_contiguous:
        raise ValueError("compiled code needs a contiguous array")
    return int(memory.ctypes.data)
