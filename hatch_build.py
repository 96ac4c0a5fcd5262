"""How the C files of the three programs become a library when kvtrace is installed.

By `cc`, else by Zig's from PyPI.

hatchling loads this for wheels and editable installs; `python hatch_build.py [FILE]` builds by
hand, beside the sources unless FILE is said. CC and CFLAGS are heeded; with
KVTRACE_WHEEL_FOR=aarch64 Zig makes a release's wheel for that.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
CORE = "kvtrace/core/native"
FOLDERS = (CORE, "kvtrace/native", "kvreplay/native", "kvdistill/native")
MANUAL = "man"
LIBRARY = ROOT / CORE / "libkvtrace.so"
ZIG = "ziglang>=0.15,<0.18"
GLIBC = "2.28"
"""The oldest that Zig's library loads with: that of Debian 10 and RHEL 8."""
FLAGS = [
    "-std=c11",
    "-D_GNU_SOURCE",
    "-O3",
    "-g1",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-pthread",
]
# The same numbers on any machine: sums wrap, and no product is rounded with the sum it goes into.
FLAGS += ["-fwrapv", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror"]
PROBE = """
#include <linux/io_uring.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
int probe(void) { return IORING_SETUP_DEFER_TASKRUN + IORING_RSRC_REGISTER_SPARSE; }
"""
"""What an own compiler must manage.

The C library's headers are there, and those of a kernel since 6.1.
"""


def sources() -> list[Path]:
    """Return the C files and their headers."""
    found = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.[ch]"))
    return sorted(found, key=lambda path: path.relative_to(ROOT).as_posix())


def sources_sha256() -> str:
    """Return the hash of the sources as they are.

    The library's `sources_sha256()` is of those that it was made of.
    """
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources())).hexdigest()


def _compiles(command: list[str], env: dict[str, str] | None = None) -> bool:
    """Return whether the compiler `command` makes the PROBE without a word."""
    with tempfile.TemporaryDirectory() as place:
        probe = [*command, *FLAGS, "-x", "c", "-", "-o", str(Path(place, "probe.so"))]
        found = subprocess.run(
            probe, input=PROBE, capture_output=True, text=True, check=False, env=env
        )
    return not found.returncode and not found.stderr


def whole_program(compiler: list[str], env: dict[str, str]) -> list[str]:
    """Return the compiler's option to look at all files at once, if it has one.

    The simulation calls across them.
    """
    return next(
        ([option] for option in ("-flto=auto", "-flto") if _compiles([*compiler, option], env)), []
    )


def own_compiler() -> list[str] | None:
    """Return $CC, or the machine's compiler if it has one that works."""
    if os.environ.get("CC"):
        return shlex.split(os.environ["CC"])
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name) and _compiles([name]):
            return [name]
    return None


def zig_compiler(machine: str) -> list[str]:
    """Return Zig's compiler for a machine: x86_64, aarch64."""
    if not importlib.util.find_spec("ziglang"):
        raise RuntimeError(
            f"no C compiler: install one (apt-get install gcc libc6-dev), or pip install '{ZIG}'"
        )
    return [sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-linux-gnu.{GLIBC}"]


def build(to: Path, machine: str | None = None) -> str:
    """Make the library at `to`, by Zig for another `machine`.

    Return the platform of a wheel that holds it.
    """
    if sys.platform != "linux":
        raise RuntimeError("kvtrace runs on Linux: its replay engine is io_uring's")
    compiler = None if machine else own_compiler()
    machine = machine or platform.machine()
    compiler = compiler or zig_compiler(machine)
    made = to.with_name(
        f"{to.name}.{os.getpid()}"
    )  # moved into place when it is whole: others may build or load it
    arguments = [
        *FLAGS,
        f'-DSOURCES_SHA256="{sources_sha256()}"',
        f"-ffile-prefix-map={ROOT}=.",
        f"-I{ROOT / CORE}",
        *shlex.split(os.environ.get("CFLAGS", "")),
        *(str(path) for path in sources() if path.suffix == ".c"),
        *("-o", str(made), f"-Wl,-soname,{LIBRARY.name}", "-lm"),
    ]
    try:
        with (
            tempfile.TemporaryDirectory() as cache
        ):  # Zig's C library, made for this: 60 MB that nothing else needs
            env = dict.fromkeys(("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"), cache) | os.environ
            subprocess.run(
                [*compiler, *whole_program(compiler, env), *arguments], env=env, check=True
            )
        tag = platform_tag(made.read_bytes(), machine)
        made.rename(to)
    finally:
        made.unlink(missing_ok=True)
    return tag


def platform_tag(library: bytes, machine: str) -> str:
    """Return the wheel's platform.

    The manylinux of the newest glibc that a symbol is of, at least of GLIBC.
    """
    wanted = re.findall(rb"\0GLIBC_(\d+)\.(\d+)(?:\.\d+)?(?=\0)", library)
    if not wanted:  # another C library
        return re.sub(r"\W", "_", sysconfig.get_platform())
    newest = max((int(major), int(minor)) for major, minor in wanted)
    floor = tuple(int(n) for n in GLIBC.split("."))
    major, minor = max(newest, floor)
    return f"manylinux_{major}_{minor}_{machine}"


class NativeBuildHook(BuildHookInterface[Any]):
    """Builds the library before a wheel is put together."""

    def dependencies(self) -> list[str]:
        """Ask for Zig only where it is needed: it is a download of 100 MB."""
        return [ZIG] if os.environ.get("KVTRACE_WHEEL_FOR") or not own_compiler() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build: beside the sources for an editable install, else only into the wheel."""
        machine = os.environ.get("KVTRACE_WHEEL_FOR")
        if version == "editable":
            to = LIBRARY
        else:
            self.place = tempfile.TemporaryDirectory()
            to = Path(self.place.name, LIBRARY.name)
            build_data["force_include"][str(to)] = f"{CORE}/{LIBRARY.name}"
        if (ROOT / MANUAL).is_dir():  # made by `make man`, which needs what kvtrace needs
            build_data["shared_data"][str(ROOT / MANUAL)] = "share/man/man1"
        tag = build(to, machine)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{tag}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Leave nothing behind."""
        if version != "editable":
            self.place.cleanup()


if __name__ == "__main__":
    if not own_compiler() and not importlib.util.find_spec("ziglang"):
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", ZIG], check=True)
    build(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else LIBRARY)
