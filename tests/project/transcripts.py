"""What the programs make of fixed inputs, as data and hashes of data.

The golden data of `test_golden_house`. Of words only their figures are kept, so that every message,
note, heading and comment may change.

`PYTHONPATH=tests/support python tests/project/transcripts.py --write` writes the goldens anew,
`--write NAME` one of them, and `--record` the two runs that reports are made of (these measure, so
that theirs must be written anew as well).
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import sys
import tempfile
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from data_only import csv_figures, data_of, figures_of, lines_of_figures, without_comments

from kvdistill.cli import main as kvdistill
from kvreplay.cli import main as kvreplay
from kvtrace import __version__
from kvtrace.cli import main as kvtrace
from kvtrace.sim.presets.preset import preset_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "house"
MOONCAKE = ROOT.parent / "shared" / "traces" / "mooncake_conversation.jsonl"

SYNTHETIC = ["--users", "32", "--duration", "60s", "--seed", "42"]
REQUESTS = ["first.jsonl", "--source", "mooncake", "--seed", "42"]
TIGHT = ["--users", "4", "--duration", "8s", "--seed", "42", "--model", "tiny-1b"]
CAPACITIES = {"gpu": "600MiB", "cpu": "1GiB", "nvme": "2GiB"}
LACKING = {"llm-d-fs": "cpu", "vllm-disk": "cpu", "vllm-obj": "nvme", "vllm-offload-cpu": "nvme"}
SHORTER = {
    "synthetic": {
        "lmcache-layerwise": ["--model", "tiny-1b", "--duration", "20s"],
        "mooncake-store": ["--duration", "20s"],
        "sglang-hicache": ["--duration", "20s"],
        "sglang-fast-file": ["--duration", "20s"],
        "vllm-disk": ["--duration", "10s"],
        "vllm-fs": ["--duration", "10s"],
        "vllm-obj": ["--duration", "10s"],
        "vllm-offload-cpu": ["--duration", "10s"],
    },
    "mooncake": {
        "lmcache-layerwise": ["--limit", "500"],
        "vllm-disk": ["--limit", "1000"],
        "vllm-fs": ["--limit", "1000"],
        "vllm-obj": ["--limit", "1000"],
        "vllm-offload-cpu": ["--limit", "1000"],
    },
}
"""What keeps a preset with many rows a token below five million of them."""


def run(main: Callable[[], Any], *args: object, folder: Path) -> tuple[int, str, str]:
    """Run a program in this process, in `folder`; return its exit code, stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    try:
        with (
            pytest.MonkeyPatch.context() as patch,
            chdir(folder),
            redirect_stdout(out),
            redirect_stderr(err),
        ):
            patch.setattr(sys, "argv", [main.__module__.split(".", maxsplit=1)[0], *map(str, args)])
            # Tables are as wide as the terminal.
            patch.setenv("COLUMNS", "100")
            main()
    except SystemExit as left:
        code = int(left.code or 0)
    return code, out.getvalue(), err.getvalue()


# Presets


def preset_cases() -> Iterator[tuple[str, list[str]]]:
    """Yield the name and arguments of every trace: each preset with each source."""
    for preset in sorted(preset_names()):
        for source, arguments in (("synthetic", SYNTHETIC), ("mooncake", REQUESTS)):
            own = SHORTER[source].get(preset, [])
            kept = arguments
            if "--duration" in own and "--duration" in arguments:
                at = arguments.index("--duration")
                kept = arguments[:at] + arguments[at + 2 :]
            yield f"{preset}/{source}", [*kept, *own, "--preset", preset]
        tight = [
            f"tiers.{name}.capacity={size}"
            for name, size in CAPACITIES.items()
            if name != LACKING.get(preset)
        ]
        yield (
            f"{preset}/tight",
            [*TIGHT, *(a for knob in tight for a in ("--set", knob)), "--preset", preset],
        )


def generated(arguments: list[str], folder: Path) -> dict[str, Any]:
    """Return what `kvtrace gen` makes of `arguments`.

    Tables by column, and metadata; or the line that refuses.
    """
    if "first.jsonl" in arguments:
        with MOONCAKE.open(encoding="utf-8") as lines:
            (folder / "first.jsonl").write_text(
                "".join(line for _, line in zip(range(2000), lines, strict=False))
            )
    written = ["-o", "t.parquet", "--requests-out", "r.parquet", "--json"]
    code, out, err = run(kvtrace, "gen", *arguments, *written, folder=folder)
    if code:
        error = figures_of(err.strip().splitlines()[-1])
        return {"argv": arguments, "code": code, "error": error}
    tables = {name: table_hashes(folder / f"{name}.parquet") for name in ("t", "t.objects", "r")}
    return {"argv": arguments, "printed": json_hash(data_of(json.loads(out))), "tables": tables}


def table_hashes(path: Path) -> dict[str, Any]:
    """Return the row count, a hash of each column, and the metadata but for what names versions and
    commands.
    """
    file = pq.ParquetFile(path)
    hashes = {name: hashlib.sha256() for name in file.schema_arrow.names}
    nulls = {name: hashlib.sha256() for name in hashes}
    for batch in file.iter_batches():
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            nulls[name].update(
                np.asarray(column.is_null().to_numpy(zero_copy_only=False)).tobytes()
            )
            hashes[name].update(canonical(column))
    columns = {
        name: (
            f"{file.schema_arrow.field(name).type} {hashed.hexdigest()}"
            f" {nulls[name].hexdigest()[:16]}"
        )
        for name, hashed in hashes.items()
    }
    meta = json.loads(file.metadata.metadata[b"kvtrace"])
    kept = data_of({key: value for key, value in meta.items() if key not in ("version", "argv")})
    shown = {key: kept[key] for key in ("config_sha256", "tiers", "notes", "stats")}
    if path.name != "t.parquet":
        shown = {}
    return {
        "rows": file.metadata.num_rows,
        "columns": columns,
        "meta": shown | {"sha256": json_hash(kept)},
    }


def json_hash(value: Any) -> str:
    """Return the hash of what can be written as JSON, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def canonical(column: Any) -> bytes:
    """Return bytes that depend on the values of `column` alone, not on how they are held.

    Nulls are 0.
    """
    if pa.types.is_dictionary(column.type):
        names = [
            hashlib.sha256(str(name).encode()).digest()[:8]
            for name in column.dictionary.to_pylist()
        ]
        table = np.array([int.from_bytes(name, "little") for name in [*names, b""]], np.uint64)
        codes = column.indices.fill_null(len(names)).to_numpy(zero_copy_only=False)
        return table[codes].tobytes()
    if pa.types.is_string(column.type) or pa.types.is_list(column.type):
        return "".join(f"{value}\n" for value in column.to_pylist()).encode()
    if pa.types.is_boolean(column.type):
        return np.asarray(
            column.fill_null(False).to_numpy(zero_copy_only=False), np.uint8
        ).tobytes()
    return np.ascontiguousarray(column.fill_null(0).to_numpy(zero_copy_only=False)).tobytes()


# Reports

GEN = ["--preset", "mlperf", "--model", "tiny-1b", "--users", "3", "--duration", "40s", "--seed", "11",
       "--set", "tiers.gpu.capacity=64MiB", "--set", "tiers.cpu.capacity=96MiB",
       "--set", "tiers.nvme.capacity=400MiB"]  # fmt: skip
SIZE = ["size", "requests.parquet", "--preset", "lmcache-disk", "--model", "tiny-1b", "--target-hit", "30%",
        "--set", "tiers.gpu.capacity=8MiB", "--dram", "64MiB,512MiB", "--nvme", "256MiB,2GiB,unlimited",
        "--price", "dram=4/GiB", "--price", "nvme=0.1/GiB", "--endurance", "1DWPD,5y"]  # fmt: skip
COMMANDS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "report of a run": (kvdistill, ["report", "run", "--json"]),
    "report of both": (kvdistill, ["report", "run", "run2", "--json"]),
    "report of a trace": (kvdistill, ["report", "t.parquet", "--json"]),
    "report on the terminal": (kvdistill, ["report", "run"]),
    "report on the terminal, trace": (kvdistill, ["report", "t.parquet"]),
    "report as Markdown": (kvdistill, ["report", "run", "--markdown"]),
    "report as CSV": (kvdistill, ["report", "run", "--csv"]),
    "compare": (kvdistill, ["compare", "run", "run2", "--json"]),
    "compare on the terminal": (kvdistill, ["compare", "run", "run2"]),
    "sql": (kvdistill, ["sql", "run", "--query", "slowest_operations", "--json"]),
    "info": (kvtrace, ["info", "t.parquet", "--json"]),
    "validate": (kvtrace, ["validate", "t.parquet", "--json"]),
    "size": (kvtrace, [*SIZE, "--json"]),
    "size on the terminal": (kvtrace, SIZE),
}
JOBS: dict[str, list[str]] = {
    "profile of the trace": ["profile", "t.parquet", "--tier", "nvme", "-o", "out/profile.json"],
    "profile of the run": ["profile", "run", "-o", "out/profile.json"],
    "fio": ["fio", "t.parquet", "--tier", "nvme", "-o", "out", "--fio-version", "3.36"],
    "fio of the run": [
        "fio",
        "run",
        "-o",
        "out",
        "--fio-version",
        "3.36",
        "--jobs",
        "4",
        "--log-version",
        "3",
    ],
    "reports": ["report", "run", "-o", "out/run.md", "-o", "out/run.csv"],
    "reports of both": ["report", "run", "run2", "-o", "out/both.md", "-o", "out/both.csv"],
    "warp": ["warp", "t.parquet", "--tier", "nvme", "-o", "out"],
    "sai3": ["sai3", "t.parquet", "--tier", "nvme", "-o", "out"],
}
FIGURES = (".md", ".csv")
"""Written reports, of which the figures are kept; of other files, a hash."""
COMMENTED = (".fio", ".yml", ".yaml")
"""Job files, whose comments may change."""
HASHED = ("report of both", "report as Markdown", "report as CSV")
"""Long answers whose parts are in others."""


def measured(folder: Path) -> Path:
    """Copy the recorded runs and their trace below `folder`, so that nothing is written into the
    goldens.
    """
    for name in ("run", "run2"):
        shutil.copytree(GOLDEN / name, folder / name)
    for path in GOLDEN.glob("*.parquet"):
        shutil.copy(path, folder)
    return folder


def scrubbed(text: str, folder: Path) -> str:
    """Return `text` without what depends on the version and on where the checkout lies."""
    for path in (folder.resolve(), folder, ROOT):
        text = text.replace(str(path), "DIR")
    recorded = json.loads((GOLDEN / "run" / "run.json").read_text(encoding="utf-8"))["version"]
    return text.replace(__version__, "VERSION").replace(recorded, "VERSION")


def steady(value: Any) -> Any:
    """Return `value` with its floats to twelve digits: the last ones are the libraries'."""
    if isinstance(value, float):
        return float(f"{value:.12g}")
    if isinstance(value, dict):
        return {key: steady(entry) for key, entry in value.items()}
    return [steady(entry) for entry in value] if isinstance(value, list) else value


def answered(name: str, folder: Path) -> dict[str, Any]:
    """Return what one of `COMMANDS` prints."""
    main, arguments = COMMANDS[name]
    code, out, err = run(main, *arguments, folder=measured(folder))
    out = scrubbed(out, folder)
    is_json = "--json" in arguments and code == 0
    found: dict[str, Any] = {"argv": arguments, "code": code}
    if is_json:
        found["out"] = data_of(steady(json.loads(out)))
    elif "--csv" in arguments:
        found["out"] = csv_figures(out)
    else:
        found["out"] = lines_of_figures(out)
    if name in HASHED:
        found["out"] = json_hash(found["out"])
    return found if code == 0 else found | {"error": figures_of(scrubbed(err, folder))}


def queried(folder: Path) -> dict[str, Any]:
    """Return hashes of what every query of the SQL library answers for the runs and for the trace."""
    measured(folder)
    code, out, err = run(kvdistill, "sql", "--list", "--json", folder=folder)
    assert code == 0, err
    names = [entry["name"] for entry in json.loads(out)]
    found: dict[str, Any] = {}
    for name in names:
        for source in (
            ["run", "run2", "t.parquet", "t.objects.parquet", "requests.parquet"],
            ["t.parquet"],
        ):
            code, out, err = run(
                kvdistill, "sql", *source, "--query", name, "--json", folder=folder
            )
            said = scrubbed(err if code else out, folder)
            answer = figures_of(said) if code else data_of(steady(json.loads(said)))
            found[f"{name} of {source[0]}"] = [code, json_hash(answer)]
    return found


def distilled(name: str, folder: Path) -> dict[str, Any]:
    """Return the files that one of `JOBS` writes: figures of reports, hashes of others."""
    measured(folder)
    (folder / "out").mkdir()
    code, out, err = run(kvdistill, *JOBS[name], folder=folder)
    files = {
        path.name: written(path, folder)
        for path in sorted(p for p in (folder / "out").rglob("*") if p.is_file())
    }
    found: dict[str, Any] = {
        "argv": JOBS[name],
        "code": code,
        "files": files,
        "out": lines_of_figures(scrubbed(out, folder)),
    }
    return found if code == 0 else found | {"error": figures_of(scrubbed(err, folder))}


def written(path: Path, folder: Path) -> Any:
    """Return the figures of a report, or a hash of another file's data without its words."""
    data = path.read_bytes()
    if path.suffix == ".zst":
        data = zstandard.ZstdDecompressor().decompressobj().decompress(data)
    try:
        text = scrubbed(data.decode(), folder)
    except UnicodeDecodeError:
        return hashlib.sha256(data).hexdigest()
    if path.suffix in FIGURES:
        found = csv_figures(text) if path.suffix == ".csv" else lines_of_figures(text)
        return found if path.stem == "run" else json_hash(found)
    if path.suffix == ".json":
        return json_hash(data_of(json.loads(text)))
    if path.suffix in COMMENTED:
        text = without_comments(text)
    return hashlib.sha256(text.encode()).hexdigest()


# Writing


def record() -> None:
    """Measure the runs anew, on a scratch folder beside them.

    What describes this machine is left out.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = ["-o", "t.parquet", "--requests-out", "requests.parquet"]
        done = [run(kvtrace, "gen", *GEN, *made, folder=folder)]
        (folder / "scratch").mkdir()
        common = ["run", "t.parquet", "--tier", "nvme=scratch", "--requests", "requests.parquet"]
        done.append(run(kvreplay, *common, "-o", "run", folder=folder))
        done.append(
            run(
                kvreplay,
                *common,
                "--tier",
                "cpu=ram",
                "--queue-depth",
                "2",
                "-o",
                "run2",
                folder=folder,
            )
        )
        for code, _, err in done:
            assert code == 0, err
        for measured_run in ("run", "run2"):
            path = folder / measured_run / "run.json"
            run_json = json.loads(path.read_text())
            run_json["host"] |= {"kernel": "6.8.0", "cpu_model": "a processor"}
            run_json["tiers"]["nvme"] |= {"mount_options": "rw,relatime", "device": "nvme0n1"}
            path.write_text(json.dumps(run_json, indent=2) + "\n")
            shutil.rmtree(GOLDEN / measured_run, ignore_errors=True)
            shutil.copytree(folder / measured_run, GOLDEN / measured_run)
        for path in folder.glob("*.parquet"):
            shutil.copy(path, GOLDEN)


def in_folder(made: Callable[..., Any], *args: Any) -> Any:
    """Return what `made` makes of `args` in a folder of its own, as it reads from JSON."""
    with tempfile.TemporaryDirectory() as name:
        return json.loads(json.dumps(made(*args, Path(name))))


MAKERS: dict[str, Callable[[], dict[str, Any]]] = {
    "presets": lambda: {
        name: in_folder(generated, arguments) for name, arguments in preset_cases()
    },
    "reports": lambda: {name: in_folder(answered, name) for name in COMMANDS},
    "sql": lambda: in_folder(queried),
    "jobs": lambda: {name: in_folder(distilled, name) for name in JOBS},
}


def main() -> None:
    """Write what the arguments name."""
    arguments = sys.argv[1:]
    if arguments == ["--record"]:
        record()
        arguments = ["--write", "reports", "sql", "jobs"]
    if arguments[:1] != ["--write"]:
        sys.exit(__doc__)
    for name in arguments[1:] or MAKERS:
        text = json.dumps(MAKERS[name](), indent=1, ensure_ascii=False)
        (GOLDEN / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
