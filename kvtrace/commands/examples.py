"""The command `examples`: write the files that the documentation's commands read."""

from __future__ import annotations

from pathlib import Path

from kvtrace.core.app import Force, log, option
from kvtrace.core.errors import DeviceError
from kvtrace.core.files import aside, check_new

_PACKAGED = Path(__file__).parents[1] / "examples"
"""In a wheel. A checkout has them in its own folder `examples`."""
_IN_CHECKOUT = Path(__file__).parents[2] / "examples"
_SUFFIXES = (".jsonl", ".json", ".toml", ".ipynb")


def examples(
    output: Path = option(
        "The folder for them; made if missing.", Path("examples"), "-o --output", show_default=True
    ),
    force: Force = False,
) -> None:
    """Write the example files: a log of requests, a drive file, studies, a notebook.

    The commands of the documentation read them from the folder `examples`.

    \b
    kvtrace examples
    kvtrace size examples/conversation.jsonl --source mooncake --preset vllm-fs --target-hit 40%
    """
    source = _PACKAGED if _PACKAGED.is_dir() else _IN_CHECKOUT
    files = [file for file in sorted(source.iterdir()) if file.suffix in _SUFFIXES]
    if output.exists() and output.samefile(source):
        raise DeviceError(f"{output}: has the examples already; name another folder with -o")
    for file in files:
        check_new(output / file.name, is_forced=force)
    output.mkdir(parents=True, exist_ok=True)
    for file in files:
        with aside(output / file.name) as path:
            path.write_bytes(file.read_bytes())
    log(f"wrote {len(files)} files to {output}: {', '.join(file.name for file in files)}")
