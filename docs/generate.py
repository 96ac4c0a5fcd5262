"""Write what is generated.

Schemas/ from kvtrace/core/schema.py, docs/reference/ from the code itself, and llms.txt.

`make docs` runs it; `python docs/generate.py --check` says what is out of date, and a test does so
too.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import sys
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec

from kvdistill.profile import profile
from kvdistill.queries.sql import named_queries
from kvtrace.core.schema import PHASE_MEANINGS, SCHEMA_VERSION, STUDY, TABLES, Table
from kvtrace.sim.presets.preset import knobs_of, listing

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ("kvtrace", "kvreplay", "kvdistill")


def schema_page() -> str:
    """Return schemas/README.md."""
    intro = (
        "# The tables\n\nGenerated from `kvtrace/core/schema.py` by `make docs`; do not edit."
        f" Schema version {SCHEMA_VERSION}.\n\nThe three programs pass nothing to each other but"
        " these tables, as Parquet (`*.parquet`) or zstd CSV (`*.csv.zst`), equal in content. A"
        " trace may also be a folder of Parquet files (see `docs/format.md`). Null"
        " means unknown or not measured, and is never 0. An `enum` is a closed set of names,"
        " stored as a dictionary.\n\nEvery file carries its provenance as JSON: in the Parquet"
        " footer under the key `kvtrace`, or in the last line (`# end …`) of a CSV, whose presence"
        " also tells a whole file from a truncated one. It holds the schema and program version,"
        " argv, seed, preset, configuration and its SHA-256, model, tiers with their capacities,"
        " source, notes, the counters of the simulation or run, the clock unit (ns) and the row"
        " count.\n"
    )
    parts = [intro]
    parts += [table_page(table) for table in (*TABLES.values(), STUDY)]
    phases = "\n".join(f"| `{phase}` | {meaning} |" for phase, meaning in PHASE_MEANINGS.items())
    parts.append(profile_page())
    parts.append(f"## Phases\n\n| phase | meaning |\n|---|---|\n{phases}\n")
    return "\n".join(parts)


def table_json(table: Table) -> dict[str, Any]:
    """Return the generated description of `table`, as `schemas/<name>.json` holds it."""
    columns = []
    for c in (*table.columns, *table.extras):
        entry: dict[str, Any] = {
            name: getattr(c, name) for name in ("name", "type", "unit", "nullable", "meaning")
        }
        if c.values:
            entry["values"] = list(c.values)
        if c.type.startswith("int"):
            entry |= {"least": c.least, "most": c.most}
        if c in table.extras:
            entry |= {"since": c.since, "may_be_absent": True, "default": c.default}
        columns.append(entry)
    return {
        "generated_by": "kvtrace/core/schema.py; run `make docs`, do not edit",
        "table": table.name,
        "schema_version": table.version(tuple(c.name for c in table.extras)),
        "meaning": table.meaning,
        "columns": columns,
    }


def table_page(table: Table) -> str:
    """Return the section of one table."""
    rows = [
        f"| `{c.name}` | {c.type}{', null' if c.nullable else ''} | {c.unit} | {c.meaning}"
        + (f": {', '.join(f'`{v}`' for v in c.values)}" if c.values else "")
        + " |"
        for c in (*table.columns, *table.extras)
    ]
    return (
        f"## {table.name}\n\n{table.meaning}\n\n| column | type | unit | meaning"
        " |\n|---|---|---|---|\n" + "\n".join([*rows, ""])
    )


def profile_schema() -> dict[str, Any]:
    """Return the JSON schema of a profile, with what the docstrings of its fields say."""
    schema = msgspec.json.schema(profile.Profile)
    for node in ast.parse(Path(profile.__file__).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name in schema["$defs"]:
            fields = schema["$defs"][node.name].get("properties", {})
            for field, text in pairwise(node.body):
                if (
                    isinstance(field, ast.AnnAssign)
                    and isinstance(text, ast.Expr)
                    and ast.unparse(field.target) in fields
                ):
                    name, meaning = (
                        ast.unparse(field.target),
                        " ".join(ast.literal_eval(text.value).split()),
                    )
                    fields[name] = {"description": meaning, **fields[name]}
    for node in schema["$defs"].values():
        if "description" in node:
            # Python 3.13 takes the indent off docstrings, those before it leave it.
            node["description"] = inspect.cleandoc(node["description"])
    return {
        "$comment": "generated from kvdistill/profile/profile.py; run `make docs`, do not edit",
        **schema,
    }


def profile_page() -> str:
    """Return the section of the profile."""
    defs = profile_schema()["$defs"]
    parts = [
        (
            "## profile.json\n\nWhat `kvdistill profile` writes and jobs are made of; its JSON schema"
            " is profile.json.\n"
        )
    ]
    for name, entry in defs.items():
        rows = [
            f"| `{field}` | {of.get('description', '')} |"
            for field, of in entry.get("properties", {}).items()
        ]
        if rows:
            parts.append(
                f"### {name}\n\n{entry.get('description', '')}\n\n| field | meaning |\n|---|---|\n"
                + "\n".join([*rows, ""])
            )
    return "\n".join(parts)


def cli_page() -> str:
    """Return docs/reference/commands.md: the help of every command."""
    parts = [
        "# Commands\n\nGenerated from each command's `--help-all` by `make docs`; do not edit.\n"
    ]
    for program in PROGRAMS:
        top = help_of(program)
        parts.append(f"## {program}\n\n```\n{top}```\n")
        parts += [
            f"### {program} {name}\n\n```\n{help_of(program, name)}```\n"
            for name in commands_in(top)
        ]
    return "\n".join(parts)


def presets_page() -> str:
    """Return docs/reference/presets.md: what each preset is based on, and every knob."""
    intro = (
        "# Presets and knobs\n\nGenerated from `kvtrace/sim/presets/` by `make docs`; do not edit."
        " `kvtrace presets` lists them, `kvtrace presets NAME` prints a preset's knobs with their"
        " values, and `--set KNOB=VALUE` changes one: `--set chunk_tokens=64`, `--set"
        " tiers.nvme.capacity=2TiB`.\n\n## Presets\n"
    )
    presets = [
        f"### {preset['name']}\n\n{preset['description']}.\n\n- Engine: {preset['engine']}"
        f" {preset['version']}\n- Read: {preset['read']}\n- Executed:"
        f" {' '.join(preset['executed'].split())}\n"
        for preset in listing()
    ]
    head = (
        "## Knobs\n\n`*`: the name of a tier.\n\n| knob | type | range | default | meaning"
        " |\n|---|---|---|---|---|"
    )
    knobs = {re.sub(r"^tiers\.\w+", "tiers.*", knob.name): knob for knob in knobs_of("mlperf")}
    rows = []
    for name, knob in knobs.items():
        kind = knob.type.replace("|", "\\|")
        bounds = "" if knob.least is None else f"{knob.least:,} to {knob.most:,}"
        default = "" if knob.default is None else f"`{knob.default}`"
        rows.append(f"| `{name}` | {kind} | {bounds} | {default} | {knob.meaning} |")
    return "\n".join([intro, *presets, head, *rows, ""])


def queries_page() -> str:
    """Return docs/reference/queries.md: the library of `kvdistill sql`."""
    intro = (
        "# Queries\n\nGenerated from `kvdistill/queries/sql/library` by `make docs`; do not edit."
        ' `kvdistill sql SOURCE --query NAME` runs one; `kvdistill sql SOURCE "SELECT …"` any other'
        " over the same views.\n"
    )
    queries = [
        f"## {query.name}\n\n{query.answers}\n\nReads:"
        f" {', '.join(f'`{view}`' for view in query.needs)}\n\n```sql\n{query.sql.strip()}\n```\n"
        for query in named_queries()
    ]
    return "\n".join([intro, *queries])


def commands_in(text: str) -> list[str]:
    """Return the names under `Commands:` of a program's help."""
    lines = text.split("\n")
    start = lines.index("Commands:") + 1
    names = []
    for line in lines[start:]:
        if not line.startswith("  "):
            break
        if line[2] != " ":
            names.append(line.split()[0])
    return names


def help_of(program: str, *command: str) -> str:
    """Return the help of a program or of one of its commands, 80 columns wide."""
    argv, narrow = (
        [*command, "--help-all" if command else "--help"],
        {"COLUMNS": "80", "TERMINAL_WIDTH": "80"},
    )
    with redirect_stdout(StringIO()) as shown, patch.dict(os.environ, narrow):
        import_module(f"{program}.cli").app(argv, prog_name=program, standalone_mode=False)
    return shown.getvalue()


def llms_page() -> str:
    """Return llms.txt: each page of the site's navigation, with its first sentence."""
    parts = [
        "# kvtrace\n\n> Simulate, replay and distil the storage I/O of an LLM's KV-cache offload.\n"
    ]
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for title, page in re.findall(r"^ +- (.+): (\S+\.md)$", nav, re.MULTILINE):
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        if included := re.match(r'--8<-- "(.+)"', text):
            text = (ROOT / included[1]).read_text(encoding="utf-8")
        for aside in (r"(?s)```.*?```", r"(?m)^#.*$", r"(?m)^\|.*$"):
            text = re.sub(aside, "", text)
        first = re.split(r"(?<=[.?:])\s", " ".join(text.split()), maxsplit=1)[0].rstrip(":")
        parts.append(f"- [{title}](docs/{page}): {first}")
    return "\n".join(parts) + "\n"


def man_page(program: str, *command: str) -> str:
    """Return the manual page, in section 1, of a program or of one of its commands.

    Its help, as it is.
    """
    name, text = "-".join([program, *command]), help_of(program, *command)
    said = " ".join(text.split("\n\n")[1].split())
    body = "\n".join(
        line.replace("\\", "\\e") if line[:1] not in (".", "'") else f"\\&{line}"
        for line in text.split("\n")
    )
    return (
        f'.TH "{name.upper()}" 1\n.SH NAME\n{name} \\- {said}\n.SH DESCRIPTION\n.nf\n{body}\n.fi\n'
    )


def write_manual(folder: Path) -> None:
    """Write the manual pages of all programs and commands into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for program in PROGRAMS:
        for command in [(), *((name,) for name in commands_in(help_of(program)))]:
            text = man_page(program, *command)
            (folder / f"{'-'.join([program, *command])}.1").write_text(text, encoding="utf-8")


def pages() -> dict[Path, str]:
    """Return every generated file and its text."""
    texts = {
        Path(f"schemas/{t.name}.json"): json.dumps(table_json(t), indent=2) + "\n"
        for t in (*TABLES.values(), STUDY)
    }
    texts[Path("schemas/profile.json")] = json.dumps(profile_schema(), indent=2) + "\n"
    texts[Path("schemas/README.md")] = schema_page()
    texts[Path("docs/reference/commands.md")] = cli_page()
    texts[Path("docs/reference/presets.md")] = presets_page()
    texts[Path("docs/reference/queries.md")] = queries_page()
    texts[Path("llms.txt")] = llms_page()
    return texts


def main() -> int:
    """Write the files, or with --check return 1 if any differs.

    With --man FOLDER write the manual there instead.
    """
    if "--man" in sys.argv:
        write_manual(Path(sys.argv[-1]))
        return 0
    kept = {
        path: (ROOT / path).read_text(encoding="utf-8")
        for path in pages()
        if (ROOT / path).exists()
    }
    stale = [path for path, text in pages().items() if kept.get(path) != text]
    if "--check" in sys.argv:
        for path in stale:
            sys.stderr.write(f"{path} is out of date; run make docs\n")
        return 1 if stale else 0
    for path, text in pages().items():
        (ROOT / path).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
