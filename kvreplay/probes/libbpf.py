"""The probes' programs in the kernel, their tables and ring buffer, by libbpf or BCC.

The system's libbpf, called by ctypes, loads the object into the kernel. libbpf's interface is
stable since version 1, and its package (libbpf1, libbpf) is in every distribution. `check_available`
tells whether probes can run here. `Filter` selects processes, cgroups and disks, and `load` prepares
the programs for this kernel and attaches them.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import re
import stat
import struct
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from kvreplay.probes import Backend
from kvreplay.tiers.host import devices_beneath, disk_of, slaves
from kvtrace.core.errors import ConfigError, DeviceError, ProbeUnavailable
from kvtrace.core.mounts import block_directories, block_directory, mounts, numbered
from kvtrace.core.native.structs import header
from kvtrace.core.parameters import named
from kvtrace.core.run.probe_file import Bucket, Histogram
from kvtrace.core.statistics import QUANTILES, at_rank, bounds, nearest_rank
from kvtrace.core.system_files import sys_text

C = header(
    *(Path(__file__).parent / f"{name}.bpf.h" for name in ("common", "filter", "block", "app"))
)
"""The types that the C programs and Python share."""
SUB_BITS, SLOTS = C.constants["SUB_BITS"], C.constants["SLOTS"]


def histogram(slots: Sequence[int], total_ns: int) -> Histogram:
    """Return the histogram of the counts in `slots`; the times add up to `total_ns`.

    A percentile is the middle of the slot that contains its nearest rank. It is null if there are
    fewer than 1 / (1 - q) values.
    """
    fine = [Bucket(*bounds(i, SUB_BITS), n) for i, n in enumerate(slots) if n]
    middles = [((sum(bounds(i, SUB_BITS)) - 1) / 2, n) for i, n in enumerate(slots) if n]
    count = sum(slots)
    return Histogram(
        count=count,
        mean_ns=total_ns / count if count else None,
        longest_below_ns=fine[-1].below if fine and not slots[-1] else None,
        log2_ns=log2(fine),
        fine_ns=fine,
        **{
            f"{name}_ns": at_rank(middles, nearest_rank(count, quantile))
            for name, quantile in QUANTILES.items()
        },
    )


def log2(fine: Sequence[Bucket]) -> list[Bucket]:
    """Sum `fine` slots into power-of-two buckets, including empty ones in between.

    The first bucket is [0, 1).
    """
    counts = Counter[int]()
    for bucket in fine:
        counts[bucket.from_.bit_length()] += bucket.count
    powers = range(min(counts), max(counts) + 1) if counts else ()
    return [Bucket(1 << power - 1 if power else 0, 1 << power, counts[power]) for power in powers]


def _named(enum: str) -> tuple[str, ...]:
    """Return the names of the counters in `enum`, as outputs use them.

    They are its enumerators except the last one, which is their number.
    """
    names = C.enums[enum][: C.enums[enum].index(f"{enum}s".upper())]
    return tuple(
        name.lower().removeprefix("app_").removesuffix("_call").rstrip("_") for name in names
    )


DIRECTIONS, COUNTS, KINDS, CALLS, CALL_COUNTS = map(
    _named, ("direction", "count", "kind", "call", "call_count")
)
CONFIG, REQUEST, EVENT, AMOUNT = map(C.dtype, ("config", "request_state", "event", "amount"))
"""Structs of the programs; in REQUEST and EVENT, a time of 0 was not seen."""
_SHARED, _LINE_BYTES = C.dtype("shared"), 64
SHARED = np.dtype([("values", _SHARED), ("unused", "u1", -_SHARED.itemsize % _LINE_BYTES)])
NUMBER = np.dtype([("value", "<u8")])
KEYS = {
    "requests": np.dtype([("request", "<u8")]),
    "in_flight": np.dtype([("dev", "<u4")]),
    **{
        table: C.dtype(key)
        for table, key in (("sizes", "size_key"), ("seconds", "second_key"), ("zones", "zone_key"))
    },
}
VALUES = {
    "requests": REQUEST,
    "in_flight": NUMBER,
    "sizes": NUMBER,
    "seconds": AMOUNT,
    "zones": AMOUNT,
}
"""Types of the values in the hash tables."""


LIBRARY = "libbpf.so.1"
_BTF_ENUM, _TYPE_BYTES = 6, 12
"""BTF_KIND_ENUM, and `struct btf_type` before its members, of include/uapi/linux/btf.h."""
_POINTER, _TEXT, _INT = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
_SIGNATURES = {
    "libbpf_set_print": (_POINTER, _POINTER),
    "bpf_object__open_mem": (_POINTER, _POINTER, ctypes.c_size_t, _POINTER),
    "bpf_object__load": (_INT, _POINTER),
    "bpf_object__close": (None, _POINTER),
    "bpf_object__next_program": (_POINTER, _POINTER, _POINTER),
    "bpf_object__find_map_by_name": (_POINTER, _POINTER, _TEXT),
    "bpf_program__name": (_TEXT, _POINTER),
    "bpf_program__section_name": (_TEXT, _POINTER),
    "bpf_program__set_autoload": (_INT, _POINTER, ctypes.c_bool),
    "bpf_program__autoload": (ctypes.c_bool, _POINTER),
    "bpf_program__attach": (_POINTER, _POINTER),
    "bpf_link__destroy": (_INT, _POINTER),
    "btf__load_vmlinux_btf": (_POINTER,),
    "btf__find_by_name_kind": (ctypes.c_int32, _POINTER, _TEXT, ctypes.c_uint32),
    "btf__type_by_id": (_POINTER, _POINTER, ctypes.c_uint32),
    "btf__name_by_offset": (_TEXT, _POINTER, ctypes.c_uint32),
    "btf__free": (None, _POINTER),
    "bpf_map_create": (
        _INT,
        _INT,
        _TEXT,
        ctypes.c_uint32,
        ctypes.c_uint32,
        ctypes.c_uint32,
        _POINTER,
    ),
    "bpf_map__fd": (_INT, _POINTER),
    "bpf_map__set_initial_value": (_INT, _POINTER, _POINTER, ctypes.c_size_t),
    "bpf_map__set_max_entries": (_INT, _POINTER, ctypes.c_uint32),
    "bpf_map_lookup_elem": (_INT, _INT, _POINTER, _POINTER),
    "bpf_map_update_elem": (_INT, _INT, _POINTER, _POINTER, ctypes.c_uint64),
    "bpf_map_delete_elem": (_INT, _INT, _POINTER),
    "bpf_map_get_next_key": (_INT, _INT, _POINTER, _POINTER),
}


@cache
def library(name: str = LIBRARY) -> Any:
    """Return the system's libbpf; ProbeUnavailable if there is none, or it is too old."""
    try:
        lib = ctypes.CDLL(name, use_errno=True)
        for function_name, (result, *arguments) in _SIGNATURES.items():
            function = getattr(lib, function_name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise ProbeUnavailable(
            f"no {name} ({error}): apt-get install libbpf1, or your distribution's libbpf 1.0 or"
            " newer"
        ) from None
    # libbpf would print to our stderr; its error numbers are enough.
    lib.libbpf_set_print(None)
    return lib


class Programs:
    """The programs and tables of one object: opened, then loaded, then attached."""

    _variables = ".bss"

    def __init__(self, content: bytes) -> None:
        """Open the object file `content`."""
        self._lib, self._content = library(), ctypes.create_string_buffer(content, len(content))
        self._links: dict[str, Any] = {}
        self._object = self._lib.bpf_object__open_mem(self._content, len(content), None)
        if not self._object:
            raise ProbeUnavailable(f"libbpf does not open the probes: {_reason()}")

    def close(self) -> None:
        """Detach and unload the programs."""
        # The kernel waits for all processors at each detachment, so these go in parallel.
        with ThreadPoolExecutor(max(1, len(self._links))) as pool:
            list(pool.map(self.detach, list(self._links)))
        if self._object:
            self._lib.bpf_object__close(self._object)
        self._object = None

    def _programs(self) -> Iterator[tuple[str, Any]]:
        """Yield the name and the handle of each program."""
        program = self._lib.bpf_object__next_program(self._object, None)
        while program:
            yield self._lib.bpf_program__name(program).decode(), program
            program = self._lib.bpf_object__next_program(self._object, program)

    def sections(self) -> dict[str, str]:
        """Return the section of each program, which names its tracepoint."""
        return {
            name: self._lib.bpf_program__section_name(program).decode()
            for name, program in self._programs()
        }

    def leave_out(self, names: set[str]) -> None:
        """Exclude the programs of these names from loading."""
        for name, program in self._programs():
            if name in names:
                self._lib.bpf_program__set_autoload(program, False)

    def load(self) -> None:
        """Load the programs into the kernel; ProbeUnavailable if it refuses them."""
        if self._lib.bpf_object__load(self._object):
            raise ProbeUnavailable(f"the probes do not load on this kernel: {_reason()}")

    def attach(self) -> None:
        """Attach the loaded programs; ProbeUnavailable if the kernel refuses."""
        for name, program in self._programs():
            if self._lib.bpf_program__autoload(program):
                self._links[name] = self._lib.bpf_program__attach(program)
                if not self._links[name]:
                    raise ProbeUnavailable(
                        f"the probe {name} does not attach on this kernel: {_reason()}"
                    )

    def detach(self, name: str) -> None:
        """Detach the program `name`, if it is attached."""
        link = self._links.pop(name, None)
        if link:
            self._lib.bpf_link__destroy(link)

    def _map(self, name: str) -> Any:
        table = self._lib.bpf_object__find_map_by_name(self._object, name.encode())
        if not table:
            raise ValueError(f"the probes have no table {name}")
        return table

    def set_entries(self, name: str, entries: int) -> None:
        """Set the capacity of the table `name`, before the programs are loaded."""
        self._lib.bpf_map__set_max_entries(self._map(name), entries)

    def descriptor(self, name: str) -> int:
        """Return the descriptor of the table `name`."""
        return int(self._lib.bpf_map__fd(self._map(name)))

    def set_constants(self, values: bytes) -> None:
        """Set the C constants, all of them, before the programs are loaded."""
        if self._lib.bpf_map__set_initial_value(self._map(".rodata"), values, len(values)):
            raise ValueError(f"{len(values)} bytes are not the size of the probes' constants")

    def shared(self) -> np.ndarray:
        """Return the C variables, as the loaded programs see and change them."""
        return np.frombuffer(
            mmap.mmap(self.descriptor(self._variables), SHARED.itemsize), dtype=SHARED
        )["values"]

    def put(self, name: str, key: bytes, value: bytes) -> None:
        """Set an entry of the table `name`."""
        if self._lib.bpf_map_update_elem(self.descriptor(name), key, value, 0):
            raise ProbeUnavailable(f"the probes' table {name} takes no entry: {_reason()}")

    def delete(self, name: str, key: bytes) -> None:
        """Delete an entry of the table `name`, if it is there."""
        self._lib.bpf_map_delete_elem(self.descriptor(name), key)

    def enumerators(self, enumeration: str) -> dict[str, int]:
        """Return the values of the running kernel's `enumeration` by name, from its BTF.

        Empty if the kernel has no such enumeration.
        """
        lib = self._lib
        btf = lib.btf__load_vmlinux_btf()
        if not btf:
            raise ProbeUnavailable(f"libbpf does not read the kernel's BTF: {_reason()}")
        try:
            number = lib.btf__find_by_name_kind(btf, enumeration.encode(), _BTF_ENUM)
            if number < 0:
                return {}
            address = lib.btf__type_by_id(btf, number)
            _name, info, _size = struct.unpack("<III", ctypes.string_at(address, _TYPE_BYTES))
            members = ctypes.string_at(address + _TYPE_BYTES, 8 * (info & 0xFFFF))
            return {
                lib.btf__name_by_offset(btf, name).decode(): value
                for name, value in struct.iter_unpack("<Ii", members)
            }
        finally:
            lib.btf__free(btf)

    def entries(self, name: str) -> Iterator[tuple[Any, Any]]:
        """Yield each key and value in the hash table `name` once, as numpy records.

        Entries that are deleted meanwhile are left out. If the current key is deleted, the kernel
        starts again from the first one, so keys that were yielded already are skipped.
        """
        table, key_type, value_type = self.descriptor(name), KEYS[name], VALUES[name]
        key_bytes, value_bytes = key_type.itemsize, value_type.itemsize
        key, following = None, ctypes.create_string_buffer(key_bytes)
        value, yielded_keys = ctypes.create_string_buffer(value_bytes), set[bytes]()
        while not self._lib.bpf_map_get_next_key(table, key, following):
            key = ctypes.create_string_buffer(following.raw, key_bytes)
            if key.raw in yielded_keys:
                continue
            if not self._lib.bpf_map_lookup_elem(table, key, value):
                yielded_keys.add(key.raw)
                yield np.frombuffer(key.raw, key_type)[0], np.frombuffer(value.raw, value_type)[0]


_HASH = re.compile(
    r"^HASH\((\w+), BPF_MAP_TYPE_(\w+), (?:struct )?(\w+), (?:struct )?(\w+), (\d+)\)", re.MULTILINE
)
_SECTION = re.compile(r'^SEC\("([^"]+)"\)\nint (\w+)\(', re.MULTILINE)
_FOLLOW = re.compile(r"^FOLLOW\((\w+), ", re.MULTILINE)
_TYPES = {"HASH": 1, "ARRAY": 2, "LRU_HASH": 9, "RINGBUF": 27}
_MMAPABLE = struct.pack("<Q6IQ2I", 56, 0, 0, 0, 0, 0, 1 << 10, 0, 0, 0)
"""`enum bpf_map_type`, and `struct bpf_map_create_opts` with BPF_F_MMAPABLE."""
_BCC = Path("/usr/lib/python3/dist-packages")
"""Directory of python3-bpfcc, for a Python that does not search it."""


class CompiledPrograms(Programs):
    """The same programs, compiled by BCC from the kernel's headers, for kernels without BTF.

    The descriptors of the tables and the constants are compiled in as numbers.
    """

    _variables = "shared"

    def __init__(self, folder: Path) -> None:
        """Read the programs in `folder`; ProbeUnavailable without BCC."""
        self._lib, self._compiler = library(), _bcc()
        names = ("bcc", "common", "filter", "block", "app")
        self._text = "\n".join(
            (folder / f"{name}.bpf.h").read_text(encoding="utf-8") for name in names
        )
        self._sections = {name: section for section, name in _SECTION.findall(self._text)}
        for call in _FOLLOW.findall(self._text):
            self._sections |= {
                f"{edge}_{call}": f"tp/syscalls/sys_{edge}_{call}" for edge in ("enter", "exit")
            }
        number = {"u32": 4, "u64": 8}
        self._tables = {
            name: (
                _TYPES[kind],
                *(number.get(type_) or C.dtype(type_).itemsize for type_ in (key, value)),
                int(entries),
            )
            for name, kind, key, value, entries in _HASH.findall(self._text)
        } | {
            "events": (_TYPES["RINGBUF"], 0, 0, RING_BYTES),
            "shared": (_TYPES["ARRAY"], 4, SHARED.itemsize, 1),
        }
        self._descriptors: dict[str, int] = {}
        self._bpf: Any = None
        self._loaded: dict[str, Any] = {}
        self._links = {}

    def close(self) -> None:
        """Detach and unload the programs."""
        if self._bpf is not None:
            self._bpf.cleanup()
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    def sections(self) -> dict[str, str]:
        """Return the section of each program, which names its tracepoint."""
        return dict(self._sections)

    def leave_out(self, names: set[str]) -> None:
        """Exclude the programs of these names from loading."""
        self._sections = {
            name: section for name, section in self._sections.items() if name not in names
        }

    def set_entries(self, name: str, entries: int) -> None:
        """Set the capacity of the table `name`, before the programs are loaded."""
        self._tables[name] = (*self._tables[name][:3], entries)

    def set_constants(self, values: bytes) -> None:
        """Set the C constants, all of them, before the programs are loaded."""
        config = np.frombuffer(values, CONFIG)[0]
        self._constants = ",".join(f"{config[name]}ULL" for name in CONFIG.names or ())

    def load(self) -> None:
        """Compile the programs and load them into the kernel.

        ProbeUnavailable if it refuses them.
        """
        for name, (kind, key_bytes, value_bytes, entries) in self._tables.items():
            options = _MMAPABLE if name == "shared" else None
            descriptor = self._lib.bpf_map_create(
                kind, name.encode(), key_bytes, value_bytes, entries, options
            )
            if descriptor < 0:
                raise ProbeUnavailable(
                    f"the kernel makes no table {name} for the probes: {_reason()}"
                )
            self._descriptors[name] = descriptor
        flags = [f"-DFD_{name}={number}" for name, number in self._descriptors.items()]
        compiler = self._compiler
        try:
            self._bpf = compiler(
                text=self._text, cflags=[*flags, f"-DCONFIG={{{self._constants}}}", "-w"]
            )
            for name, section in self._sections.items():
                kind = compiler.TRACEPOINT if section.startswith("tp/") else compiler.RAW_TRACEPOINT
                self._loaded[name] = self._bpf.load_func(name, kind)
        except Exception as error:  # noqa: BLE001 - BCC raises nothing narrower
            raise ProbeUnavailable(
                f"BCC does not compile the probes for this kernel: {error}"
            ) from None

    def attach(self) -> None:
        """Attach the loaded programs; ProbeUnavailable if the kernel refuses."""
        for name, section in self._sections.items():
            kind, _, tracepoint = section.partition("/")
            try:
                if kind == "tp":
                    self._bpf.attach_tracepoint(tp=tracepoint.replace("/", ":"), fn_name=name)
                else:
                    self._bpf.attach_raw_tracepoint(tp=tracepoint, fn_name=name)
                    self._links[name] = tracepoint
            except Exception as error:  # noqa: BLE001 - as above
                raise ProbeUnavailable(
                    f"the probe {name} does not attach on this kernel: {error}"
                ) from None

    def detach(self, name: str) -> None:
        """Detach the program `name`, if it is attached."""
        if name in self._links:
            self._bpf.detach_raw_tracepoint(self._links.pop(name))

    def descriptor(self, name: str) -> int:
        """Return the descriptor of the table `name`."""
        return self._descriptors[name]

    def enumerators(self, enumeration: str) -> dict[str, int]:
        """Return the values of the running kernel's flag bits by name, from its headers."""
        text = (kernel_headers() / "include" / "linux" / "blk_types.h").read_text(encoding="utf-8")
        body = text.partition(f"enum {enumeration} {{")[2].partition("};")[0]
        return {
            name: 8 + index
            for index, name in enumerate(re.findall(r"^\s*(__REQ_\w+)", body, re.MULTILINE))
        }


def kernel_headers() -> Path:
    """Return the directory where BCC finds the headers of the running kernel.

    ProbeUnavailable if they are not installed.
    """
    modules = Path("/lib/modules") / os.uname().release
    configured = os.environ.get("BCC_KERNEL_SOURCE")
    for path in [Path(configured)] if configured else [modules / "source", modules / "build"]:
        if (path / "include" / "linux" / "blk_types.h").is_file():
            return path
    raise ProbeUnavailable(
        f"no headers of this kernel in {configured or modules}: apt-get install linux-headers-$(uname"
        " -r), or name them in BCC_KERNEL_SOURCE"
    )


def _bcc() -> Any:
    """Return BCC's class BPF, of the system's package; ProbeUnavailable if it is not installed."""
    sys.path.append(str(_BCC))
    try:
        from bcc import BPF
    except ImportError as error:
        raise ProbeUnavailable(f"no BCC ({error}): apt-get install python3-bpfcc") from None
    finally:
        sys.path.remove(str(_BCC))
    return BPF


def _reason() -> str:
    number = ctypes.get_errno()
    return f"{os.strerror(number)} ({errno.errorcode.get(number, number)})"


RING_BYTES = C.constants["RING_BYTES"]
"""Space for 0.19 million events between two calls of `take`."""
_RECORD = np.dtype([("length", "<u4"), ("page", "<u4"), ("event", EVENT)])
"""Each event has a header (BPF_RINGBUF_HDR_SZ); all are equally long."""
_BUSY = 1 << 31
"""Flag in the length of an event that is still being written."""


class EventRing:
    """The kernel's ring buffer: a page with our position, one with the kernel's, and the data.

    The data is mapped twice in a row, so that events across its end are contiguous.
    """

    def __init__(self, descriptor: int) -> None:
        """Map the ring buffer behind `descriptor`."""
        page = mmap.PAGESIZE
        consumer = mmap.mmap(descriptor, page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._data = mmap.mmap(
            descriptor, page + 2 * RING_BYTES, mmap.MAP_SHARED, mmap.PROT_READ, offset=page
        )
        self._ours = np.frombuffer(consumer, "<u8", 1)
        self._kernels = np.frombuffer(self._data, "<u8", 1)

    def take(self) -> bytes:
        """Remove and return the completely written events, packed EVENT records."""
        position = int(self._ours[0])
        available = (int(self._kernels[0]) - position) // _RECORD.itemsize
        records = np.frombuffer(
            self._data, _RECORD, available, mmap.PAGESIZE + position % RING_BYTES
        )
        busy = np.flatnonzero(records["length"] & _BUSY)
        count = int(busy[0]) if len(busy) else available
        events = records["event"][:count].tobytes()
        self._ours[0] = position + count * _RECORD.itemsize
        return events


BTF = Path("/sys/kernel/btf/vmlinux")
TRACEFS = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))
_LOCKDOWN = Path("/sys/kernel/security/lockdown")


def check_root() -> None:
    """Raise ProbeUnavailable unless this process may load programs into the kernel."""
    if sys.platform != "linux":
        raise ProbeUnavailable(f"the probes need Linux, and this is {sys.platform}")
    if os.geteuid() != 0:
        raise ProbeUnavailable(
            "needs root, to load programs into the kernel: run it with sudo, for example"
        )


def check_available(backend: Backend = Backend.AUTO) -> Backend:
    """Return the backend that can load the probes into this kernel, among those `backend` allows.

    ProbeUnavailable if there is no root, tracefs, libbpf, or neither BTF nor BCC; or the kernel is
    locked down.
    """
    check_root()
    has_btf = BTF.exists()
    if backend is Backend.CORE and not has_btf:
        raise ProbeUnavailable(
            f"no {BTF}, of a kernel built with CONFIG_DEBUG_INFO_BTF: try {named('backend', 'bcc')}"
        )
    check_lockdown(_LOCKDOWN)
    tracefs()
    library()
    if backend is not Backend.BCC and has_btf:
        return Backend.CORE
    try:
        _bcc()
        kernel_headers()
    except ProbeUnavailable as error:
        lacks = (
            ""
            if has_btf
            else f"no {BTF}, which a kernel built with CONFIG_DEBUG_INFO_BTF has, and "
        )
        raise ProbeUnavailable(f"{lacks}{error}") from None
    return Backend.BCC


def check_lockdown(path: Path) -> None:
    """Raise ProbeUnavailable if, by the file `path`, the kernel forbids all reads of its memory."""
    if path.exists() and "[confidentiality]" in path.read_text(encoding="utf-8"):
        raise ProbeUnavailable(
            "the kernel is locked down (confidentiality): boot with lockdown=integrity or none"
        )


def tracefs() -> Path:
    """Return the directory of the kernel's tracepoints; ProbeUnavailable if there is none."""
    for path in TRACEFS:
        if (path / "events" / "block").is_dir():
            return path
    raise ProbeUnavailable("tracefs is not mounted: mount -t tracefs tracefs /sys/kernel/tracing")


MINOR_BITS = 20
"""Bits of the minor number in the kernel's device numbers."""
ZONES = 1024
"""Zones in the map of the offsets at which a disk is read and written."""
MIN_ZONE_SHIFT = 11
_SYS = Path("/sys")


@dataclass(frozen=True, slots=True)
class Disk:
    """A disk with requests that the probes see."""

    name: str
    number: int
    """Device number as in the kernel: major << 20 | minor."""


def resolve(device: Path, sys: Path = _SYS) -> list[Disk]:
    """Return the disks beneath `device`, the path of a block device.

    DeviceError if there is no such block device, or the system does not describe it.
    """
    try:
        status = device.stat()
    except OSError as error:
        raise DeviceError(
            f"{device}: {error.strerror}; name a block device such as /dev/nvme0n1"
        ) from None
    if not stat.S_ISBLK(status.st_mode):
        raise DeviceError(f"{device} is not a block device; name one such as /dev/nvme0n1")
    return beneath(numbered(status.st_rdev), sys)


def beneath(number: str, sys: Path = _SYS) -> list[Disk]:
    """Return the disks beneath the device of this number, such as 259:1, in order of name."""
    directory = block_directory(number, sys)
    if directory is None:
        raise DeviceError(
            f"{sys / 'dev' / 'block' / number} does not exist: the system does not describe device"
            f" {number}"
        )
    lowest = {
        block
        for block in devices_beneath(directory, has_loops=False)
        if block is not None and not slaves(block)
    }
    disks = {disk.name: (disk / "dev").read_text(encoding="ascii") for disk in map(disk_of, lowest)}
    return [Disk(name, _number(disks[name])) for name in sorted(disks)]


def _number(text: str) -> int:
    major, minor = map(int, text.split(":"))
    return major << MINOR_BITS | minor


def above(disks: Sequence[Disk], sys: Path = _SYS) -> list[int]:
    """Return the numbers of all devices that send their I/O to any of `disks`.

    These are the disks themselves, and the partitions, dm and md devices on them.
    """
    disk_numbers = {disk.number for disk in disks}
    names = sorted(block_directories(sys)) if disk_numbers else []
    return [
        _number(name)
        for name in names
        if disk_numbers & {disk.number for disk in beneath(name, sys)}
    ]


def zone_shift(disks: Sequence[Disk], sys: Path = _SYS) -> int:
    """Return the number of bits by which a sector number is shifted to give its zone.

    A disk has at most ZONES zones, of 1 MiB at least. The largest of `disks`, or of all disks if
    there are none, decides.
    """
    names = [disk.name for disk in disks] or [entry.name for entry in (sys / "block").iterdir()]
    sizes = [sys / "block" / name / "size" for name in names]
    sectors = max(
        (int(size.read_text(encoding="ascii")) for size in sizes if size.is_file()), default=0
    )
    return max(MIN_ZONE_SHIFT, (max(sectors - 1, 0) // ZONES).bit_length())


def device_name(number: int, sys: Path = _SYS) -> str:
    """Return the name of the device with the kernel's `number`; as major:minor if it is gone."""
    major, minor = number >> MINOR_BITS, number & (1 << MINOR_BITS) - 1
    directory = block_directory(f"{major}:{minor}", sys)
    return f"{major}:{minor}" if directory is None else directory.name


COMM_BYTES = 16
"""Length of a process's name in the kernel, its terminating zero included."""
OBJECT = Path(__file__).parent / "probes.bpf.o"
"""The output of `make bpf` for probes.bpf.c."""
_OLD, _NEW = {"block_rq_insert", "block_rq_issue_first"}, {"block_io_start", "block_rq_issue"}
"""Programs for kernels before 6.5, and for later ones, which have the tracepoint block_io_start."""
_URING = {"uring_submit_req", "uring_submit_sqe", "uring_complete"}
_SUBMITTED = ("io_uring_submit_req", "io_uring_submit_sqe")
"""The first is the name since Linux 6.4."""


@dataclass(frozen=True, slots=True)
class Filter:
    """The processes and disks that are probed; None stands for all."""

    comm: str | None = None
    pid: int | None = None
    disks: list[Disk] = field(default_factory=list)
    cgroup: Path | None = None
    backend: Backend = Backend.AUTO

    def check(self) -> None:
        """Raise ConfigError if no process can pass."""
        if sum(x is not None for x in (self.comm, self.pid, self.cgroup)) > 1:
            raise ConfigError(
                f"{named('comm')}, {named('pid')} and {named('cgroup')}: name one of them"
            )
        if self.cgroup is not None:
            find_cgroup(self.cgroup)
        if self.comm is not None and not 0 < len(self.comm.encode()) < COMM_BYTES:
            raise ConfigError(
                f"{named('comm', repr(self.comm))}: a process's name has 1 to {COMM_BYTES - 1}"
                " bytes; see /proc/PID/comm"
            )
        if self.pid is not None and not Path(f"/proc/{self.pid}").is_dir():
            raise ConfigError(f"{named('pid', self.pid)}: there is no such process")

    def is_running(self) -> bool:
        """Return whether a thread called `comm` runs now."""
        for path in Path("/proc").glob("[0-9]*/task/[0-9]*/comm"):
            # A thread may end meanwhile.
            if sys_text(path) == self.comm:
                return True
        return False

    def notes(self) -> list[str]:
        """Return notes for a user who may have mistyped the name."""
        if self.comm is None or self.is_running():
            return []
        return [f"no process is called {self.comm} now; those that start later are measured"]

    def config(self) -> np.ndarray:
        """Return the filter as the programs' `config`."""
        values = np.zeros((), dtype=CONFIG)
        values["own_pid"] = os.getpid()
        values["o_direct"] = os.O_DIRECT
        values["is_device_wanted"] = bool(self.disks)
        values["zone_shift"] = zone_shift(self.disks)
        if self.cgroup is not None:
            cgroup = find_cgroup(self.cgroup)
            values["wanted_cgroup"], values["cgroup_level"] = cgroup.number, cgroup.level
        if self.pid is not None:
            values["wanted_pid"] = self.pid
        if self.comm is not None:
            name = self.comm.encode()
            padded_name = name.ljust(COMM_BYTES, b"\0")
            # The mask covers the terminating zero, so that longer names do not pass.
            mask = (b"\xff" * (len(name) + 1)).ljust(COMM_BYTES, b"\0")
            values["is_comm_wanted"] = True
            for half, half_bytes in (("low", slice(0, 8)), ("high", slice(8, 16))):
                values[f"comm_{half}"] = int.from_bytes(padded_name[half_bytes], "little")
                values[f"comm_mask_{half}"] = int.from_bytes(mask[half_bytes], "little")
        return values


def load(io_filter: Filter, *, has_events: bool) -> Programs:
    """Load the programs for this kernel, attach and return them.

    They count nothing until the shared `origin_ns` is set.

    ProbeUnavailable if this machine cannot run them.
    """
    backend = check_available(io_filter.backend)
    events = tracefs() / "events"
    config, offsets = io_filter.config(), uring_offsets(events)
    config["has_events"] = has_events
    programs = (
        CompiledPrograms(OBJECT.parent) if backend is Backend.BCC else Programs(OBJECT.read_bytes())
    )
    try:
        for name, offset in (offsets or {}).items():
            config[name] = offset
        programs.leave_out(
            missing(programs.sections(), events) | (_URING if offsets is None else set())
        )
        if not has_events:
            programs.set_entries("events", mmap.PAGESIZE)
        programs.set_constants(config.tobytes())
        programs.load()
        for table, numbers in (
            ("devices", [d.number for d in io_filter.disks]),
            ("file_devices", above(io_filter.disks)),
        ):
            for number in numbers:
                programs.put(table, number.to_bytes(4, "little"), (1).to_bytes(4, "little"))
        programs.attach()
    except BaseException:
        programs.close()
        raise
    return programs


def missing(sections: dict[str, str], events: Path) -> set[str]:
    """Return the names of the programs that a kernel with the tracepoints `events` cannot use.

    `sections` are the programs' sections by name.
    """
    has_start = (events / "block" / "block_io_start").is_dir()
    left_out = _OLD if has_start else _NEW
    for name, section in sections.items():
        kind, _, tracepoint = section.partition("/")
        if not (events / (tracepoint if kind == "tp" else f"block/{tracepoint}")).is_dir():
            left_out = left_out | {name}
    return left_out


def uring_offsets(events: Path) -> dict[str, int] | None:
    """Return the offsets of the fields that we need in io_uring's tracepoints.

    None if a tracepoint or field is missing; then calls of io_uring are not seen.
    """
    submitted = [
        offset
        for name in _SUBMITTED
        if (offset := _field_offset(events / "io_uring" / name, "req")) is not None
    ]
    request, result = (
        _field_offset(events / "io_uring" / "io_uring_complete", name) for name in ("req", "res")
    )
    if not submitted or request is None or result is None:
        return None
    return {"uring_submitted_at": submitted[0], "uring_req_at": request, "uring_result_at": result}


def _field_offset(tracepoint: Path, field_name: str) -> int | None:
    format_ = tracepoint / "format"
    text = format_.read_text(encoding="ascii") if format_.is_file() else ""
    match = re.search(rf"[ *]{field_name};\s+offset:(\d+);", text)
    return None if match is None else int(match.group(1))


def unseen_calls(events: Path) -> tuple[str, ...] | None:
    """Return the asynchronous calls that this kernel's tracepoints do not show.

    None if they show no calls at all.
    """
    if not (events / "syscalls" / "sys_enter_pread64").is_dir():
        return None
    visible = {
        "io_submit": (events / "syscalls" / "sys_enter_io_submit").is_dir(),
        "io_uring": uring_offsets(events) is not None,
    }
    return tuple(call for call, is_visible in visible.items() if not is_visible)


@dataclass(frozen=True, slots=True)
class Cgroup:
    """A cgroup of version 2."""

    number: int
    """The kernel's id, which is the directory's inode number."""
    level: int
    """Number of cgroups above it; 0 for the root."""


def find_cgroup(path: Path, proc: Path = Path("/proc")) -> Cgroup:
    """Return the cgroup at `path`: a directory, or a path as in /proc/PID/cgroup after `0::`.

    ConfigError if there is no cgroup of version 2 at `path`.
    """
    roots = [Path(mount.point) for mount in mounts(proc) if mount.kind == "cgroup2"]
    if not roots:
        raise ConfigError(
            f"{named('cgroup', path)}: no cgroup2 is mounted: mount -t cgroup2 none /sys/fs/cgroup"
        )
    root = roots[0]
    directory = path.resolve() if path.is_dir() else root / path.as_posix().lstrip("/")
    if not directory.is_dir() or not directory.is_relative_to(root):
        raise ConfigError(
            f"{named('cgroup', path)}: no cgroup of version 2; name a directory below {root}"
        )
    return Cgroup(directory.stat().st_ino, len(directory.relative_to(root).parts))
