"""Runs the RUN steps of Containerfile in roots that are there, for want of an engine.

As root, by chroot.

`container_steps.py BUILD FINAL` takes two folders with a Debian and its Python, one for each stage
(`debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm BUILD`, and
a copy). COPY is done as the file says; FROM, USER, ENTRYPOINT and CMD are an engine's, and not
tried. Prints how long steps took, and what came of them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def instructions(text: str) -> list[tuple[str, str]]:
    """Return each instruction's word and the rest, its lines joined."""
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    return [
        (word, rest)
        for word, _, rest in (
            x.partition(" ") for x in re.sub(r"\\\n", "", lines).splitlines() if x
        )
    ]


def copied(sources: list[str], to: Path) -> None:
    """Copy files or one folder of this repository, as COPY does."""
    for source in sources:
        if (ROOT / source).is_dir():
            shutil.copytree(
                ROOT / source, to, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            to.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / source, to)


def mib(path: Path) -> int:
    """Return what a folder takes on the disk."""
    done = subprocess.run(["du", "-smx", path], capture_output=True, text=True, check=True)  # noqa: S603, S607
    return int(done.stdout.split()[0])


def main() -> None:
    """Run the steps."""
    roots = [Path(argument).resolve() for argument in sys.argv[1:3]]
    stage, arguments = -1, ""
    for word, rest in instructions((ROOT / "Containerfile").read_text(encoding="utf-8")):
        if word == "FROM":
            stage += 1
        elif word == "ARG":
            arguments += f"{rest}; "
        elif word == "COPY":
            *sources, to = rest.split()
            if sources[0] == "--from=build":
                shutil.copytree(
                    roots[0] / sources[1][1:],
                    roots[stage] / to[1:],
                    symlinks=True,
                    dirs_exist_ok=True,
                )
            else:
                copied(sources, roots[stage] / to[1:])
        elif word == "RUN":
            start = time.monotonic()
            command = ["chroot", roots[stage], "/bin/sh", "-c", arguments + rest]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603
            sys.stdout.write(f"{time.monotonic() - start:6.1f} s  {rest[:90]}\n")
            sys.stdout.flush()
    for root in roots:
        sys.stdout.write(
            f"{root.name}: {mib(root)} MiB, of it /opt/kvtrace {mib(root / 'opt/kvtrace')} MiB\n"
        )


if __name__ == "__main__":
    main()
