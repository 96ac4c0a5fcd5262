"""Each command with all that it does, on damaged input."""

from __future__ import annotations

import json
import math
import random
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import mutate
import seeds
from damaged_tables import table_file, whole
from programs import run_cli
from readers import import_files_of, mlperf_file, request_file, setting, toml_of
from trials import Command, Target, Trial


def _argv(rng: random.Random, *choices: list[str]) -> list[str]:
    return rng.choice(choices)


def with_a_trace(rng: random.Random, folder: Path) -> Trial:
    """Run a command on a damaged trace, with a damaged objects table beside it at times."""
    from kvtrace.core.schema import OBJECTS, TRACE

    if rng.random() < 0.75:
        path = table_file(TRACE, rng, folder).path
        beside, is_damaged = path.name.replace("t.", "t.objects.", 1), rng.random() < 0.15
    else:
        path, beside, is_damaged = folder / "t.parquet", "t.objects.parquet", True
        path.write_bytes(whole("trace", True))
    if is_damaged:
        made = table_file(OBJECTS, rng, folder, "o").path
        if made.suffix == path.suffix:
            made.rename(folder / beside)
    else:
        (folder / beside).write_bytes(whole("objects", path.suffix == ".parquet"))
    name = str(path)
    json_ = ["--json"] if rng.random() < 0.5 else []
    argv, outputs = rng.choice((
        (["kvtrace", "info", name, *json_], []), (["kvtrace", "validate", name, *json_], []),
        (["kvtrace", "convert", name, "c.csv.zst"], ["c.csv.zst"]), (["kvtrace", "convert", name, "c.parquet"], ["c.parquet"]),
        (["kvtrace", "convert", name, "c.csv", "--to", "mlperf"], ["c.csv"]),
        (["kvdistill", "report", name, *json_], []), (["kvdistill", "report", name, "-o", "report.csv", "-o", "report.md"], ["report.csv", "report.md"]),
        (["kvdistill", "profile", name, "--tier", "nvme", "-o", "p.json", *json_], ["p.json"]),
        (["kvdistill", "fio", name, "--tier", "nvme", "-o", "jobs", "--fio-version", "3.33", *json_], ["jobs/replay.fio"]),
        (["kvdistill", "sai3", name, "--tier", "nvme", "-o", "jobs", *json_], ["jobs/oplog.tsv.zst"]),
        (["kvdistill", "warp", name, "--tier", "nvme", "-o", "jobs", "--csv"], ["jobs/mixed.yml"]),
        (["kvdistill", "sql", name, "SELECT op, sum(length_bytes) FROM trace GROUP BY op"], []),
        (["kvreplay", "run", name, "--tier", "nvme=null", "-o", "run", *json_], ["run/run.json"]),
    ))  # fmt: skip
    return Command(argv, outputs, "--json" in argv)


def with_a_run(rng: random.Random, folder: Path) -> Trial:
    """Run a command on the folder of a run of which a file is damaged, or gone."""
    from kvtrace.core.schema import BLOCKS, OPS, SERIES, SERVED

    run = folder / "run"
    run.mkdir()
    files: dict[str, bytes] = {
        "ops.parquet": whole("ops", True), "run.json": json.dumps(seeds.RUN).encode(), "series.parquet": whole("series", True),
        "requests.parquet": whole("served", True),
    }  # fmt: skip
    if rng.random() < 0.4:
        files |= {
            "blocks.parquet": whole("blocks", True),
            "probe.json": json.dumps(probe()).encode(),
        }
    for name, data in files.items():
        (run / name).write_bytes(data)
    victim = rng.choice(list(files))
    tables = {
        "ops.parquet": OPS,
        "blocks.parquet": BLOCKS,
        "series.parquet": SERIES,
        "requests.parquet": SERVED,
    }
    (run / victim).unlink()
    if rng.random() < 0.95:
        if victim in tables:
            made = table_file(tables[victim], rng, folder).path
            if made.name.endswith(".parquet"):
                made.rename(run / victim)
        else:
            tree = seeds.RUN if victim == "run.json" else probe()
            data = mutate.json_of(mutate.several(mutate.tree_of, tree, rng))
            (run / victim).write_bytes(mutate.bytes_of(data, rng) if rng.random() < 0.2 else data)
    json_ = ["--json"] if rng.random() < 0.5 else []
    argv, outputs = rng.choice((
        (["kvdistill", "report", "run", *json_], []),
        (["kvdistill", "report", "run", "-o", "report.csv", "-o", "report.md", "-o", "report.html"], ["report.csv", "report.md", "report.html"]),
        (["kvdistill", "compare", "run", str(seeds.GOLDEN / "run2"), *json_], []),
        (["kvdistill", "profile", "run", "--tier", "nvme", "-o", "p.json", *json_], ["p.json"]),
        (["kvdistill", "profile", "run/blocks.parquet", "-o", "p.json"], ["p.json"]),
        (["kvdistill", "profile", "run/probe.json", "-o", "p.json"], ["p.json"]),
        (["kvdistill", "fio", "run", "--tier", "nvme", "-o", "jobs", "--fio-version", "3.33"], ["jobs/replay.fio"]),
        (["kvdistill", "sai3", "run", "--tier", "nvme", "-o", "jobs"], ["jobs/oplog.tsv.zst"]),
        (["kvdistill", "warp", "run", "--tier", "nvme", "-o", "jobs"], ["jobs/mixed.yml"]),
        (["kvdistill", "sql", "run", "--query", "runs_at_a_glance"], []), (["kvdistill", "sql", "run", "SELECT count(*) FROM ops"], []),
    ))  # fmt: skip
    return Command(argv, outputs, "--json" in argv)


def with_an_import(rng: random.Random, folder: Path) -> Trial:
    """Import a damaged log of another tool."""
    kind, files = import_files_of(rng, folder)
    names = [path.name for path in files]
    json_ = ["--json"] if rng.random() < 0.5 else []
    made_files = [
        "trace.parquet",
        "ops.parquet",
        "run.json",
        "probe.json",
        "blocks.parquet",
        "trace.objects.parquet",
    ]
    argv = ["kvdistill", "import", kind, *names, "-o", "out", *json_]
    return Command(argv, [f"out/{name}" for name in made_files], "--json" in argv)


def with_requests(rng: random.Random, folder: Path) -> Trial:
    """Simulate, or look at, a damaged file of requests."""
    kind, path = request_file(rng, folder)
    name, source = str(path), ["--source", kind] if rng.random() < 0.8 else []
    argv, outputs = rng.choice((
        (["kvtrace", "import", name, *source, "-o", "i.parquet"], ["i.parquet"]),
        (["kvtrace", "gen", name, *source, "-o", "g.parquet", "--preset", "lmcache-disk"], ["g.parquet", "g.objects.parquet"]),
        (["kvtrace", "mrc", name, *source, "--points", "3"], []),
        (["kvtrace", "sim", name, *source, "--capacity-blocks", "1,unlimited"], []),
    ))  # fmt: skip
    return Command(argv, outputs)


def with_a_preset(rng: random.Random, folder: Path) -> Trial:
    """Simulate with a damaged preset, override or option."""
    path = folder / "p.toml"
    path.write_bytes(
        mutate.several(toml_of, seeds.PRESET, rng) if rng.random() < 0.5 else seeds.PRESET
    )
    argv = [
        "kvtrace",
        "gen",
        "--users",
        "2",
        "--duration",
        "1s",
        "--limit",
        "4",
        "--preset",
        str(path),
        "-o",
        "g.parquet",
    ]
    for _ in range(rng.choice((0, 1, 2))):
        argv += ["--set", setting(rng).replace("\x00", "")]
    if rng.random() < 0.3:
        option = rng.choice(
            (
                "--drive-size",
                "--duration",
                "--seed",
                "--tp",
                "--model",
                "--gpu",
                "--burstiness",
                "--request-rate",
            )
        )
        value = rng.choice(
            (str(mutate.number(rng)), rng.choice(mutate.FLOATS), rng.choice(mutate.HOSTILE))
        )
        argv += [option, value.replace("\x00", "").encode("utf-8", "replace").decode()]
    return Command(argv, ["g.parquet", "g.objects.parquet"])


def with_other_files(rng: random.Random, folder: Path) -> Trial:
    """Run a command on a damaged MLPerf trace, model, profile or partial run."""
    kind = rng.randrange(4)
    if kind == 0:
        return Command(
            ["kvtrace", "convert", str(mlperf_file(rng, folder)), "c.parquet"],
            ["c.parquet", "c.objects.parquet"],
        )
    if kind == 1:
        path = folder / "config.json"
        path.write_bytes(mutate.json_of(mutate.several(mutate.tree_of, seeds.MODEL, rng)))
        return Command(["kvtrace", "models", str(path), "--json"], [], is_json=True)
    if kind == 2:
        path = folder / "profile.json"
        path.write_bytes(mutate.json_of(mutate.several(mutate.tree_of, profile(), rng)))
        argv, outputs = rng.choice((
            (["kvdistill", "fio", str(path), "-o", "jobs", "--mode", "stat", "--fio-version", "3.33"], ["jobs/stat.fio"]),
            (["kvdistill", "warp", str(path), "-o", "jobs"], ["jobs/mixed.yml"]),
        ))  # fmt: skip
        return Command(argv, outputs)
    run = folder / "run"
    run.mkdir()
    partial = {k: v for k, v in seeds.RUN.items() if k != "summary"} | {
        "running": {"trace": "t.parquet"},
        "status": "running",
    }
    (folder / "t.parquet").write_bytes(whole("trace", True))
    (run / "run.partial.json").write_bytes(
        mutate.json_of(mutate.several(mutate.tree_of, partial, rng))
    )
    (run / "ops.partial.arrow").write_bytes(rng.randbytes(rng.randrange(2000)))
    return Command(
        _argv(rng, ["kvreplay", "recover", "run"], ["kvdistill", "report", "run"]), ["run/run.json"]
    )


COMMANDS: tuple[tuple[Target, int], ...] = (
    (with_a_trace, 30), (with_a_run, 30), (with_an_import, 25), (with_requests, 15), (with_a_preset, 15),
    (with_other_files, 15),
)  # fmt: skip


def _made(argv: list[str], files: dict[str, bytes], wanted: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        for name, data in files.items():
            (Path(folder) / name).write_bytes(data)
        run_cli(*argv, cwd=Path(folder))
        return msgspec.json.decode((Path(folder) / wanted).read_bytes())


@cache
def probe() -> Any:
    """Return the content of a probe.json."""
    return _made(
        ["kvdistill", "import", "blkparse", "b.txt", "-o", "out"],
        seeds.IMPORTS["blkparse"],
        "out/probe.json",
    )


@cache
def profile() -> Any:
    """Return the content of a profile.json."""
    argv = ["kvdistill", "profile", "t.parquet", "--tier", "nvme", "-o", "p.json"]
    return _made(argv, {"t.parquet": whole("trace", True)}, "p.json")


def finite(value: Any) -> bool:
    """Return whether no number in a tree of JSON is infinite or not one."""
    if isinstance(value, dict):
        return all(map(finite, value.values()))
    if isinstance(value, list):
        return all(map(finite, value))
    return not isinstance(value, float) or math.isfinite(value)
