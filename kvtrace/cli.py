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
    {
        "kvtrace.commands.gen:gen": (
            "Simulate requests over the tiers of a preset and write the I/O as a trace, "
            "deletes included."
        ),
        "kvtrace.commands.curves:size": (
            "Find the cheapest DRAM and NVMe that reach a hit rate or a time to first token."
        ),
        "kvtrace.commands.curves:breakeven": (
            "Say from which bandwidth on loading a cached prefix is faster than computing it again."
        ),
        "kvtrace.commands.study:plan": (
            "Find the cache that reaches a target at the lowest monthly cost."
        ),
        "kvtrace.commands.study:study": (
            "Simulate many configurations, and print the best, the cheapest that reaches a "
            "target, and the effect of each knob."
        ),
        "kvtrace.commands.tables:info": (
            "Print the contents of a trace: rows, span, operations, bytes, live bytes and hit "
            "rates."
        ),
        "kvtrace.commands.tables:validate": (
            "Check a trace: reads find live objects, capacities hold, time and stages never "
            "go back."
        ),
        "kvtrace.commands.curves:sim": (
            "Count the hits of one cache over a request trace, for each capacity, block by "
            "block in file order."
        ),
        "kvtrace.commands.curves:mrc": (
            "Print hits, and bytes read and written, against the capacity of a single tier."
        ),
        "kvtrace.commands.examples:examples": (
            "Write the example files: a log of requests, a drive file, studies, a notebook."
        ),
        "kvtrace.commands.tables:models": (
            "List the models, or print how many bytes one of them stores and reads, line by line."
        ),
        "kvtrace.commands.tables:presets": (
            "List the presets and the engines they imitate, or print every knob of one preset."
        ),
        "kvtrace.commands.tables:import_": (
            "Convert a file of real requests to a requests table, and print its figures."
        ),
        "kvtrace.commands.tables:record": (
            "Follow the KV events of a live vLLM or SGLang until Ctrl-C, and write them as a table."
        ),
        "kvtrace.commands.tables:convert": (
            "Convert a table between Parquet and zstd CSV, or a trace from or to the MLPerf "
            "trace CSV."
        ),
        "kvtrace.commands.tables:merge": "Merge traces into one, in order of time.",
    },
)


def main() -> None:
    """Run kvtrace."""
    run(app, "kvtrace")


if __name__ == "__main__":
    main()
