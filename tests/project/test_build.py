"""How the replay engine's library is built.

Of the sources as they are, for every Python, and without a compiler.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from kvtrace.core.native.library import FILE

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    """hatch_build.py, which hatchling loads in a build's environment."""
    pytest.importorskip("hatchling")
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def made_of(library: Path) -> str:
    """Return the hash of the sources that the library at `library` was made of."""
    loaded = ctypes.CDLL(str(library))
    loaded.sources_sha256.restype = ctypes.c_char_p
    return loaded.sources_sha256().decode()


def wheel_of(place: Path, source: Path, *options: str, **environment: str) -> Path:
    """Return the wheel that pip makes of `source`, in `place`."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        *options,
        "--wheel-dir",
        place,
        source,
    ]
    subprocess.run(command, env=os.environ | environment, check=True)
    (found,) = place.glob("*.whl")
    return found


def library_in(wheel: Path) -> Path:
    """Return the library in `wheel`, laid beside it.

    There is one, and of the C only headers, which Python reads.
    """
    with zipfile.ZipFile(wheel) as inside:
        native = [
            name
            for name in inside.namelist()
            if "/native/" in name and not name.endswith((".py", ".h"))
        ]
        assert native == ["kvtrace/core/native/libkvtrace.so"]
        tags = inside.read(
            next(name for name in inside.namelist() if name.endswith(".dist-info/WHEEL"))
        ).decode()
        assert f"Tag: {wheel.stem.split('-', 2)[2]}\n" in tags
        assert "Root-Is-Purelib: false\n" in tags
        return Path(inside.extract(native[0], wheel.parent))


def test_the_library_is_of_the_sources_as_they_are(hook):
    assert made_of(FILE) == hook.sources_sha256(), "the C files have changed: run make native"


def test_a_wheel_says_the_oldest_glibc_that_it_loads_with(hook):
    def tag(*versions: str) -> str:
        return hook.platform_tag(
            b"\0".join([b"\x7fELF", *(v.encode() for v in versions), b""]), "x86_64"
        )

    assert tag("GLIBC_2.2.5", "GLIBC_2.9", "GLIBC_2.34") == "manylinux_2_34_x86_64"
    assert tag("GLIBC_2.2.5", "GLIBC_2.17") == "manylinux_2_28_x86_64", "older ones are not tried"
    assert tag("puts") == "linux_x86_64", "another C library"


@pytest.mark.full
def test_one_wheel_is_for_every_python(hook, tmp_path):
    """Made without a network, by this machine's compiler if it has one."""
    if not hook.own_compiler():
        pytest.skip("no C compiler")
    wheel = wheel_of(tmp_path, ROOT, "--no-build-isolation")
    assert wheel.name.split("-", 2)[2].startswith("py3-none-manylinux_2_")
    assert made_of(library_in(wheel)) == hook.sources_sha256()


@pytest.mark.full
def test_the_sdist_builds_with_no_compiler_on_the_path(hook, tmp_path):
    """Then Zig's comes from PyPI: 100 MB."""
    command = [
        sys.executable,
        "-m",
        "build",
        "--sdist",
        "--no-isolation",
        "--outdir",
        tmp_path / "sdist",
        ROOT,
    ]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    (sdist,) = (tmp_path / "sdist").iterdir()
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python3").symlink_to(sys.executable)
    wheel = wheel_of(tmp_path, sdist, PATH=str(programs), CC="")
    assert "-py3-none-manylinux_2_28_" in wheel.name
    library = library_in(wheel)
    assert b"GCC: (" not in library.read_bytes()
    assert made_of(library) == hook.sources_sha256()
