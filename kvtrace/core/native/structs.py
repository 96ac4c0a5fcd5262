"""C structs as Python makes and reads them.

Laid out as a header says, which is the only place that says it.

    WORLD = header(Path("world.h"))
    tiers = np.zeros(3, WORLD.dtype("Tier"))            # NumPy's records
    drive = REPLAY.struct("Drive")(fd=3)                # ctypes'
    world = Structure(WORLD, "World", tiers=tiers)      # TABLE(Tier, tiers): an array, in C a pointer and a count
    world.log = np.zeros(9, ...)                        # a pointer alone: an array, a Structure, or a number
    world.knobs.seed = 42                               # a struct within this one

Of C a header may use structs, enums, numbers by #define, TABLE, integers of <stdint.h> or the
kernel, double, bool, arrays of known lengths, and pointers, which are addresses in Python. What it
includes must be named, too, where its structs stand within others.
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
    """Of an array, in C's order."""


class CHeader:
    """What headers say: their structs and constants by name."""

    def __init__(self, text: str) -> None:
        self.constants = {name: int(value) for name, value in _DEFINE.findall(text)}
        self.enums: dict[str, list[str]] = {}
        """The names of each enumeration that has one."""
        text = _COMMENT.sub("", text)
        self._kinds = dict(_NUMBERS)
        for tag, body, kind in _ENUM.findall(text):
            self.enums[tag or kind] = [
                part.partition("=")[0].strip() for part in body.split(",") if part.strip()
            ]
            value = -1
            for name, _, said in (part.partition("=") for part in body.split(",") if part.strip()):
                if said and not said.strip().lstrip("-").isdigit():
                    break  # an expression: C's own
                value = int(said) if said else value + 1
                self.constants[name.strip()] = value
            self._kinds[kind] = ctypes.c_int32
        self.fields: dict[str, list[_Field]] = {}
        self.tables: dict[str, dict[str, str]] = {}
        for match in _STRUCT.finditer(text):
            name, body = match[2] or match[3], match[1] or match[4]
            self.tables[name] = {of: kind for kind, of in _TABLE.findall(body)}
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
        """Return a struct as a class of ctypes."""
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
        """Return a struct, or a number, as NumPy has it."""
        found: np.dtype[Any] = np.dtype(self.struct(name))
        return found


@functools.cache
def header(*paths: Path) -> CHeader:
    """Return what the headers at `paths` say, read in this order."""
    return CHeader("\n".join(path.read_text(encoding="utf-8") for path in paths))


class Structure:
    """A C struct in memory that Python owns, with the arrays that its tables point to."""

    address: int
    """Where it is, for C."""
    arrays: JsonObject
    """What its tables and pointers point to, by name."""

    def __init__(
        self, of: CHeader, kind: str, part_of: tuple[Structure, str] | None = None, /, **fields: Any
    ) -> None:
        """Make one of zeros, or be the part of another that it calls so.

        Then set `fields`. All tables are empty.
        """
        if part_of is None:
            made = np.zeros(1, of.dtype(kind))
            memory, at = made[0], made.ctypes.data
        else:
            whole, name = part_of
            memory, at = whole.memory[name], whole.address + whole.memory.dtype.fields[name][1]
        self.__dict__.update(memory=memory, address=at, arrays={})
        tables = {name: of.dtype(item) for name, item in of.tables[kind].items()}
        parts = {
            field.name: Structure(of, field.kind, (self, field.name))
            for field in of.fields[kind]
            if field.kind in of.fields and not field.is_pointer
        }
        self.__dict__.update(tables=tables, parts=parts)
        self.set(**{name: np.zeros(0, dtype) for name, dtype in tables.items()} | fields)

    def set(self, **fields: Any) -> None:
        """Set fields by name."""
        for name, value in fields.items():
            setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:
        if name in self.arrays:
            return self.arrays[name]
        if name in self.parts:
            return self.parts[name]
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
        elif name in self.parts or name not in (self.memory.dtype.names or ()):
            raise AttributeError(f"{name!r} cannot be set")
        elif (isinstance(value, np.ndarray) and not self.memory[name].ndim) or isinstance(
            value, Structure
        ):
            self.arrays[name] = value
            self.memory[name] = address(value)
        else:
            self.memory[name] = value


def address(of: Any) -> int:
    """Return where an array without gaps lies, or a Structure; 0 for None."""
    if of is None or isinstance(of, Structure):
        return 0 if of is None else of.address
    if not of.flags.c_contiguous:
        raise ValueError("compiled code takes items that lie one behind the other")
    return int(of.ctypes.data)
