"""Whether the probes can run on this machine, and if not, in one line, why not and what mends it."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import sys
from pathlib import Path
from typing import Any

from kvtrace.core.errors import ProbeUnavailable

BTF = Path("/sys/kernel/btf/vmlinux")
TRACEFS = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))
_LOCKDOWN = Path("/sys/kernel/security/lockdown")
_KHEADERS = Path("/sys/kernel/kheaders.tar.xz")
_SYSTEM_PACKAGES = (Path("/usr/lib/python3/dist-packages"), *Path("/usr/lib").glob("python3*/site-packages"))


def check_available() -> Any:
    """Return the `bcc` module.

    Raises:
        ProbeUnavailable: no root, BTF, BCC, tracefs or headers, or the kernel is locked down.

    """
    if sys.platform != "linux":
        raise ProbeUnavailable(f"the probes need Linux, and this is {sys.platform}")
    if os.geteuid() != 0:
        raise ProbeUnavailable("the probes load programs into the kernel: run as root, for example with sudo")
    if not BTF.exists():
        raise ProbeUnavailable(f"no {BTF}: use a kernel built with CONFIG_DEBUG_INFO_BTF, as distributions' are")
    check_lockdown(_LOCKDOWN)
    tracefs()
    bcc = _load_bcc()
    check_headers(Path("/lib/modules") / platform.release(), platform.release(), _KHEADERS)
    return bcc


def check_lockdown(path: Path) -> None:
    """Raise ProbeUnavailable if `path` says that the kernel lets nobody read its memory."""
    if path.exists() and "[confidentiality]" in path.read_text(encoding="utf-8"):
        raise ProbeUnavailable("the kernel is locked down (confidentiality): boot with lockdown=integrity or none")


def tracefs() -> Path:
    """Return where the kernel's tracepoints are listed; ProbeUnavailable if they are not."""
    for path in TRACEFS:
        if (path / "events" / "block").is_dir():
            return path
    raise ProbeUnavailable("tracefs is not mounted: mount -t tracefs tracefs /sys/kernel/tracing")


def check_headers(modules: Path, release: str, kheaders: Path) -> None:
    """Raise ProbeUnavailable, with the exact recipe, unless BCC will find kernel headers in `modules`."""
    if (modules / "build").exists() or kheaders.exists() or os.environ.get("BCC_KERNEL_SOURCE"):
        return
    raise ProbeUnavailable(
        f"no kernel headers in {modules}/build: apt-get install linux-headers-{release}; if there is no such package, "
        "headers of another version do: apt-get install linux-headers-amd64, then "
        f"mkdir -p {modules} && ln -s /usr/src/linux-headers-VERSION-amd64 {modules}/build && "
        f"ln -s /usr/src/linux-headers-VERSION-common {modules}/source"
    )


def _load_bcc() -> Any:
    """Return BCC's module, from the system's packages if this environment does not see those."""
    missing = "no BCC for Python: apt-get install python3-bpfcc (or your distribution's python3-bcc)"
    if importlib.util.find_spec("bcc") is None:
        for directory in _SYSTEM_PACKAGES:
            entry = directory / "bcc" / "__init__.py"
            if entry.is_file():
                _import_from(entry)
                break
        else:
            raise ProbeUnavailable(missing)
    try:
        bcc = importlib.import_module("bcc")
    except (ImportError, OSError) as error:
        raise ProbeUnavailable(f"BCC is there but does not load ({error}): apt-get install libbpfcc") from None
    if not hasattr(bcc, "BPF"):
        raise ProbeUnavailable(
            f"the module bcc at {bcc.__file__} is another program's; pip uninstall bcc, and {missing}"
        )
    return bcc


def _import_from(entry: Path) -> None:
    # Only this package, and not all that the system's directory holds.
    spec = importlib.util.spec_from_file_location("bcc", entry, submodule_search_locations=[str(entry.parent)])
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["bcc"] = module
    try:
        spec.loader.exec_module(module)
    except (ImportError, OSError) as error:
        del sys.modules["bcc"]
        raise ProbeUnavailable(f"BCC is there but does not load ({error}): apt-get install libbpfcc") from None
