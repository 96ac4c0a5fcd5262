"""The command line of kvtrace: make traces, and say what they hold."""

from __future__ import annotations

from kvtrace.core.signals import leave_on_signals

# Before the other imports, which take longer than a signal may wait.
leave_on_signals("kvtrace", __name__)

from kvtrace.core.app import make_app, run  # noqa: E402 - see above

app = make_app(
    "kvtrace",
    "Simulate an LLM's KV-cache over GPU, CPU and storage tiers, and write the I/O as a trace.",
    "\b\nFirst steps:\n  kvtrace gen --users 32 --duration 60s --seed 42 -o t.parquet\n  kvtrace"
    " info t.parquet",
    "kvtrace.commands.gen:gen",
    "kvtrace.commands.curves:size",
    "kvtrace.commands.curves:breakeven",
    "kvtrace.commands.study:plan",
    "kvtrace.commands.study:study",
    "kvtrace.commands.tables:info",
    "kvtrace.commands.tables:validate",
    "kvtrace.commands.curves:sim",
    "kvtrace.commands.curves:mrc",
    "kvtrace.commands.tables:models",
    "kvtrace.commands.tables:presets",
    "kvtrace.commands.tables:import_",
    "kvtrace.commands.tables:record",
    "kvtrace.commands.tables:convert",
    "kvtrace.commands.tables:merge",
)


def main() -> None:
    """Run kvtrace."""
    run(app, "kvtrace")


if __name__ == "__main__":
    main()
