"""Run the engine's tests with its library built for gcc's sanitizers.

`make sanitize`, part of `make check`.

`python tests/project/sanitize.py address` looks for bytes out of bounds or freed and for undefined
behaviour, `thread` for data races; arguments behind `--` are pytest's, instead of the folders
below. `analyzer` runs nothing: gcc looks for what is freed twice, leaks or is used after its end. A
finding fails, and is printed.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = {
    "address": [
        "tests/kvreplay/engine",
        "tests/kvreplay/result",
        "tests/kvtrace/sim/test_fleet_oracle.py",
    ],
    "thread": ["tests/kvreplay/engine"],
}
FLAGS = {
    "address": (
        "-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer"
        " -O1 -g"
    ),
    "thread": "-fsanitize=thread -fno-omit-frame-pointer -O1 -g",
    # Of pointers that may be NULL it warns where a tier's kind says that they are not. Memory whose
    # place is named by more steps than so many (12 if nothing is said) is lost to it, as leaked.
    "analyzer": (
        "-fanalyzer --param=analyzer-max-svalue-depth=16 -Wno-analyzer-null-dereference"
        " -Wno-analyzer-null-argument -Wno-analyzer-possible-null-dereference"
        " -Wno-analyzer-possible-null-argument"
    ),
}
MOST_RANDOM_BITS = 28
RUNTIMES = {"address": ("libasan.so", "libubsan.so"), "thread": ("libtsan.so",)}
OPTIONS = {
    # CPython frees little at its end.
    "address": {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"},
    # Only the library is looked at: what else there is was not compiled for it.
    "thread": {"TSAN_OPTIONS": "ignore_noninstrumented_modules=1:history_size=4:exitcode=0"},
}


def runtime(name: str) -> str:
    """Return where the compiler has a library; a name alone where it has not."""
    return subprocess.run(
        ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()


def environment(kind: str, library: Path, log: Path) -> dict[str, str]:
    """Return what a program that loads the sanitizer's library needs."""
    found = {name: f"{options}:log_path={log}" for name, options in OPTIONS[kind].items()}
    # Programs that were not compiled for it need it first; and C++, whose exceptions it watches.
    preloaded = [runtime(name) for name in (*RUNTIMES[kind], "libstdc++.so")]
    return os.environ | found | {
        "LD_PRELOAD": " ".join(preloaded), "KVTRACE_NATIVE": str(library), "PYTHONMALLOC": "malloc",
    }  # fmt: skip


def main() -> int:
    """Build, run, and print what was found."""
    kind, rest = sys.argv[1], sys.argv[3:]
    with tempfile.TemporaryDirectory() as place:
        library, log = Path(place, "libkvtrace.so"), Path(place, "found")
        build = os.environ | {"CC": "gcc", "CFLAGS": FLAGS[kind]}
        subprocess.run(
            [sys.executable, "hatch_build.py", str(library)], cwd=ROOT, env=build, check=True
        )
        if kind == "analyzer":
            return 0
        # Its shadow has no room for addresses that are more random than this.
        is_too_random = (
            int(Path("/proc/sys/vm/mmap_rnd_bits").read_text(encoding="ascii")) > MOST_RANDOM_BITS
        )
        fixed = ["setarch", platform.machine(), "-R"] if kind == "thread" and is_too_random else []
        # Families whole, but for what is slow.
        which = ["--full", "-m", "not full", *(rest or TESTS[kind])]
        workers = ["-n", "2", "--dist", "loadgroup"]
        tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *workers, *which]
        code = subprocess.run(
            [*fixed, *tests], cwd=ROOT, env=environment(kind, library, log), check=False
        ).returncode
        reports = sorted(Path(place).glob("found*"))
        for report in reports:
            sys.stdout.write(report.read_text(encoding="utf-8", errors="replace"))
        sys.stdout.write(f"sanitizer {kind}: {len(reports)} processes with findings\n")
    return code or len(reports) > 0


if __name__ == "__main__":
    sys.exit(main())
