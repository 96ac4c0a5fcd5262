"""Run our programs beside numbers that others published, and write docs/published.md.

`make published DATA=folder`.

published.toml says what was published and which commands of ours make the same; the functions here
take our figure from what these print. A row whose files are not in the folder keeps the figure of
its last run, which published.json holds. `--check` writes nothing, and fails where a figure is not
what it was.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

DOCS = Path(__file__).resolve().parent
PAGE, RESULTS = DOCS / "published.md", DOCS / "published.json"
BLOCK_TOKENS = 512
"""Of Mooncake's traces."""


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Numbers that somebody published, and how ours come about."""

    name: str
    said: list[str]
    source: str
    definition: str
    commands: list[str]
    why: str = ""
    """Why ours differ."""
    take: str = ""
    """The name in TAKES of what makes our figures.

    Without one they are what `tokens` of each model take.
    """
    tokens: int = 1
    unit_bytes: int = 1
    form: str = "{}"


class Lacked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Numbers that somebody published, and what is missing for a row."""

    said: str
    source: str
    missing: str


class Published(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """published.toml."""

    files: dict[str, str]
    sources: dict[str, str]
    queries: dict[str, str]
    row: list[Row]
    lacked: list[Lacked]

    def needs(self, row: Row) -> list[str]:
        """Return the files that the row's commands read."""
        return [name for name in self.files if any(name in line for line in row.commands)]


class Result(msgspec.Struct):
    """Our figures of a row, and the day of the run that made them."""

    ours: list[str]
    ran: str


class Results(msgspec.Struct):
    """published.json: rows by their names, and what tells a file from another by its name."""

    rows: dict[str, Result]
    files: dict[str, str]


def integers(*values: float) -> list[str]:
    """Return the numbers with commas."""
    return [f"{value:,.0f}" for value in values]


def percent(*values: float, digits: int = 0) -> list[str]:
    """Return shares of 1 as percent."""
    return [f"{100 * value:.{digits}f} %" for value in values]


def hits(simulated: dict[str, Any]) -> list[int]:
    """Return the hits that `kvtrace sim` counted, a capacity each."""
    return [result["hits"] for result in simulated["results"]]


def token_shares(found: list[Any]) -> list[str]:
    """Return the tokens of hits over those of all prompts, for each capacity."""
    tokens = found[0]["input_tokens"]["sum"]
    return percent(*(BLOCK_TOKENS * count / tokens for count in hits(found[1])), digits=1)


def token_shares_of_last_half(found: list[Any]) -> list[str]:
    """Return the same of the requests that are in the first file, and not in the second."""
    tokens = found[0]["input_tokens"]["sum"] - found[2]["input_tokens"]["sum"]
    pairs = zip(hits(found[1]), hits(found[3]), strict=True)
    return percent(*(BLOCK_TOKENS * (both - first) / tokens for both, first in pairs), digits=1)


def rounded_medians(found: list[Any]) -> list[str]:
    """Return the median prompt to hundreds of tokens, with what it is, and the median answer."""
    median = found[0]["input_tokens"]["p50"]
    return [f"{round(median, -2):,} ({median:,})", *integers(found[0]["output_tokens"]["p50"])]


def model_bytes(row: Row, found: list[Any]) -> list[str]:
    """Return what the row's tokens take in each model, in its unit."""
    return [
        row.form.format(model["bytes_per_token"] * row.tokens / row.unit_bytes) for model in found
    ]


TAKES: dict[str, Callable[[list[Any]], list[str]]] = {
    "means": lambda found: integers(
        found[0]["requests"], found[0]["input_tokens"]["mean"], found[0]["output_tokens"]["mean"]
    ),
    "medians": lambda found: [
        *integers(found[0]["input_tokens"]["p50"], found[0]["output_tokens"]["p50"]),
        f"{found[0]['requests_per_s']:.1f}/s",
    ],
    "sums": lambda found: integers(
        found[0]["input_tokens"]["sum"], found[0]["output_tokens"]["sum"]
    ),
    "rounded_medians": rounded_medians,
    "block_ratios": lambda found: percent(*(hits(one)[-1] / one["references"] for one in found)),
    "request_ratios": lambda found: percent(*(one[0]["mean"] for one in found[-2:])),
    "of_unlimited": lambda found: percent(*(hits(one)[0] / hits(one)[1] for one in found)),
    "token_shares": token_shares,
    "token_shares_of_last_half": token_shares_of_last_half,
    "agentic_hits": lambda found: percent(
        *(found[1][0][name] for name in ("least", "p25", "p50", "p75", "most", "mean"))
    ),
    "agentic_tokens": lambda found: integers(*(found[1][0][name] for name in "abcdef")),
    "agentic_ends": lambda found: integers(*(found[1][0][name] for name in "abcd")),
}
"""What makes the figures of a row of what its commands print as JSON, in the form of its `said`."""


def read() -> Published:
    """Return published.toml."""
    text = (DOCS / "published.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), Published)


def read_results() -> Results:
    """Return published.json."""
    return msgspec.json.decode(RESULTS.read_bytes(), type=Results)


def run(line: str, cwd: Path, queries: dict[str, str]) -> Any:
    """Run a command as a reader does, and return what it printed as JSON.

    None of a command without --json.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(  # noqa: S602 - as a reader does
        line,
        shell=True,
        cwd=cwd,
        env={**os.environ, **queries, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{line}\n{done.stderr}")
    return json.loads(done.stdout) if line.endswith("--json") else None


def ran(published: Published, data: Path) -> Iterator[tuple[Row, list[str]]]:
    """Yield the rows whose files are in `data`, each with our figures."""
    printed: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in published.files:
            if (data / name).exists():
                link = Path(scratch, name)
                link.parent.mkdir(exist_ok=True)
                link.symlink_to((data / name).resolve())
        for row in published.row:
            lacking = [name for name in published.needs(row) if not (data / name).exists()]
            if lacking:
                sys.stderr.write(f"{row.name}: not run, {data}/{lacking[0]} is not there\n")
                continue
            for line in row.commands:
                if line not in printed:
                    printed[line] = run(line, Path(scratch), published.queries)
            found = [printed[line] for line in row.commands if printed[line] is not None]
            yield row, TAKES[row.take](found) if row.take else model_bytes(row, found)


def facts_of(path: Path) -> str:
    """Return what tells a file, or a folder of files, from another."""
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    if path.is_dir():
        return (
            f"{len(files)} files, sha256 of all by name, one after the other:"
            f" `{digest.hexdigest()}`"
        )
    return f"{path.read_bytes().count(10):,} lines, sha256 `{digest.hexdigest()}`"


def verdict(row: Row, ours: list[str]) -> str:
    """Return whether our figures are equal to the last digit published, or why not."""
    is_equal = [value.split(" (")[0] for value in ours] == row.said
    if is_equal == bool(row.why):
        kind = "are equal, but `why` is said" if is_equal else "differ, and no `why` is said"
        raise SystemExit(f"{row.name}: ours {ours} and theirs {row.said} {kind}")
    return "equal" if is_equal else f"differs: {row.why}"


def table(*lines: list[str]) -> list[str]:
    """Return a table's lines, its headings first."""
    shown = [f"| {' | '.join(cells)} |" for cells in lines]
    return [shown[0], "|---" * len(lines[0]) + "|", *shown[1:], ""]


def page(published: Published, results: Results) -> str:
    """Return the page that shows the rows with the figures of `results`."""
    ours = {row.name: results.rows[row.name] for row in published.row}
    verdicts = [verdict(row, ours[row.name].ours) for row in published.row]
    days = sorted({result.ran for result in ours.values()})
    named = [row.source.format(**published.sources) for row in published.row]
    rows = [
        [
            "; ".join(row.said), source, row.definition, "; ".join(ours[row.name].ours),
            "<br>".join(f"`{line}`" for line in row.commands), said,
        ]
        for row, source, said in zip(published.row, named, verdicts, strict=True)
    ]  # fmt: skip
    lacked = [
        [one.said, one.source.format(**published.sources), one.missing] for one in published.lacked
    ]
    intro = (
        "Does kvtrace reproduce published figures? Each row is one that others published, and ours"
        f" for the same input. {verdicts.count('equal')} of {len(rows)} rows are equal to the last"
        " digit published; for the others the last column has the reason."
        " [Validation](validation.md) has all other comparisons."
    )
    how = (
        "`make published DATA=folder` runs the commands whose [files](#files) are in the folder,"
        " and writes this page; a row without its files keeps the figure of its last run. Last"
        f" run: {' to '.join(dict.fromkeys((days[0], days[-1])))}."
    )
    return "\n".join(
        [
            "# Numbers that others published\n",
            f"{intro}\n\n{how}\n",
            *table(["published", "by", "what it is", "ours", "made by", "verdict"], *rows),
            "## What could not be had\n",
            *table(["published", "by", "missing"], *lacked),
            "## Files\n",
            *table(
                ["in the folder", "from", "what we had"],
                *(
                    [f"`{name}`", where, results.files[name]]
                    for name, where in published.files.items()
                ),
            ),
            "## Queries\n",
            *(
                f"`${name}`:\n\n```sql\n{query.strip()}\n```\n"
                for name, query in published.queries.items()
            ),
        ]
    )


def main() -> int:
    """Run the rows that can be run, and write their figures and the page."""
    parser = argparse.ArgumentParser(
        description="Run our programs beside numbers that others published."
    )
    parser.add_argument(
        "data",
        nargs="?",
        type=Path,
        default=Path("published-data"),
        help="the folder with the files",
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail where a figure is not what it was"
    )
    options = parser.parse_args()
    published = read()
    results = read_results() if RESULTS.exists() else Results({}, {})
    changed = 0
    for row, ours in ran(published, options.data):
        before = results.rows.get(row.name)
        is_other = before is None or before.ours != ours
        changed += is_other
        was = f", was {'; '.join(before.ours)}" if before is not None and is_other else ""
        sys.stdout.write(f"{row.name}: {'; '.join(ours)}{was}\n")
        results.rows[row.name] = Result(ours, datetime.now(UTC).date().isoformat())
    if options.check:
        return int(changed > 0)
    results.files |= {
        name: facts_of(options.data / name)
        for name in published.files
        if (options.data / name).exists()
    }
    text = page(published, results)
    RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
