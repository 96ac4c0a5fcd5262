"""The command line of kvtrace: make traces, and say what they hold."""

from __future__ import annotations

from kvtrace.commands.admission import admission
from kvtrace.commands.convert import convert, import_, merge
from kvtrace.commands.curves import mrc, sim
from kvtrace.commands.gen import gen
from kvtrace.commands.inspect import info, validate
from kvtrace.commands.models import models
from kvtrace.commands.presets import presets
from kvtrace.commands.record import record
from kvtrace.commands.size import size
from kvtrace.commands.study import study
from kvtrace.core.app import add_command, make_app, run

app = make_app(
    "kvtrace",
    "Simulate an LLM's KV-cache over GPU, CPU and storage tiers, and write the I/O as a trace.",
    "\b\nFirst steps:\n  kvtrace gen --users 32 --duration 60s --seed 42 -o t.parquet\n  kvtrace info t.parquet",
)
for command in (
    gen,
    size,
    study,
    info,
    validate,
    sim,
    mrc,
    admission,
    models,
    presets,
    import_,
    record,
    convert,
    merge,
):
    add_command(app, command)


def main() -> None:
    """Run kvtrace."""
    run(app, "kvtrace")


if __name__ == "__main__":
    main()
