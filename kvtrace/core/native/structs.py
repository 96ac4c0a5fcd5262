"""C structs as Python makes and reads them: laid out as a header says, which is the only place that says it.

    WORLD = header(Path("world.h"))
    tiers = np.zeros(3, WORLD.dtype("Tier"))
    world = Structure(WORLD, "World")
    world.tiers = tiers             # TABLE(Tier, tiers): a NumPy array there, a pointer and a count in C
    world.knobs.seed = 42           # a struct within this one that has tables, or is of numbers

Of C the header may use what `world.h` does: structs, enums, TABLE, integers of <stdint.h>, double, and pointers.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

_NUMBERS = {f"int{bits}_t": np.dtype(f"i{bits // 8}") for bits in (8, 16, 32, 64)} | {"double": np.dtype("f8")}
_COMMENT = re.compile(r"//[^\n]*")
_STRUCT = re.compile(r"(?:typedef\s+struct\s*\{([^}]*)\}\s*(\w+)|struct\s+(\w+)\s*\{([^}]*)\})\s*;")
_ENUM = re.compile(r"enum\s*\{([^}]*)\}\s*;")
_TABLE = re.compile(r"TABLE\((\w+),\s*(\w+)\)")
_FIELDS = re.compile(r"(\w+)\s+([^;]+);")


class Header:
    """What a header says: its structs as dtypes, tables and constants by name."""

    def __init__(self, text: str) -> None:
        text = _COMMENT.sub("", text)
        self.constants: dict[str, int] = {}
        for (body,) in ((m[1],) for m in _ENUM.finditer(text)):
            value = -1
            for name, _, said in (part.partition("=") for part in body.split(",") if part.strip()):
                value = int(said) if said.strip() else value + 1
                self.constants[name.strip()] = value
        self._dtypes = dict(_NUMBERS)
        self.tables: dict[str, dict[str, np.dtype[Any]]] = {}
        self.parts: dict[str, dict[str, str]] = {}
        for match in _STRUCT.finditer(text):
            self._add(match[2] or match[3], match[1] or match[4])

    def _add(self, name: str, body: str) -> None:
        fields: list[tuple[str, Any]] = []
        tables: dict[str, np.dtype[Any]] = {}
        parts: dict[str, str] = {}
        for kind, rest in _FIELDS.findall(_TABLE.sub(r"\1 TABLE \2", body)):
            if rest.startswith("TABLE "):
                of = rest.removeprefix("TABLE ")
                tables[of] = self._dtypes[kind]
                fields += [(of, "i8"), (f"{of}_count", "i8")]
                continue
            for declared in (part.strip() for part in rest.split(",")):
                of = declared.lstrip("*")
                fields.append((of, self._dtypes[kind] if of == declared else "i8"))
                if kind in self.tables and of == declared:
                    parts[of] = kind
        self._dtypes[name] = np.dtype(fields, align=True)
        self.tables[name], self.parts[name] = tables, parts

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return how a struct lies in memory."""
        return self._dtypes[name]


@functools.cache
def header(path: Path) -> Header:
    """Return what the header at `path` says."""
    return Header(path.read_text(encoding="utf-8"))


class Structure:
    """A C struct in memory that Python owns, with the arrays that its tables point to."""

    address: int
    """Where it is, for C."""
    arrays: dict[str, Any]
    """Its tables by name."""

    def __init__(self, of: Header, kind: str, memory: Any = None) -> None:
        """Take `memory`, a record of the struct's dtype; new, zeros, if it is not given. All tables are empty."""
        memory = np.zeros(1, of.dtype(kind))[0] if memory is None else memory
        tables, parts = of.tables[kind], dict[str, Structure]()
        self.__dict__.update(memory=memory, tables=tables, parts=parts, arrays={})
        self.__dict__["address"] = memory.__array_interface__["data"][0]
        for name, part in of.parts[kind].items():
            # Records of numbers are NumPy's; what has tables, or is set by name, is a Structure.
            parts[name] = Structure(of, part, memory[name])
        for name, dtype in tables.items():
            setattr(self, name, np.zeros(0, dtype))

    def __getattr__(self, name: str) -> Any:
        if name in self.arrays:
            return self.arrays[name]
        if name in self.parts:
            return self.parts[name]
        try:
            return self.memory[name].item()
        except (KeyError, ValueError):
            raise AttributeError(f"no field {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.tables:
            array = np.ascontiguousarray(value, self.tables[name])
            self.arrays[name] = array
            self.memory[name], self.memory[f"{name}_count"] = array.ctypes.data, array.size
        elif name in self.parts or name not in (self.memory.dtype.names or ()):
            raise AttributeError(f"{name!r} cannot be set")
        else:
            self.memory[name] = value

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self, name, value)
