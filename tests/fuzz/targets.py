"""What is tried: each reader by itself, thousands a second, and each command with all that it does.

A target writes damaged input into a folder and returns what to do with it.
"""

from __future__ import annotations

import io
import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import mutate
import pyarrow as pa
import pyarrow.parquet as pq
import seeds
import zstandard

from kvtrace.core.schema import TABLES, Table, arrow_schema


class Broken(AssertionError):
    """A promise that does not hold."""


@dataclass
class Reading:
    """A reader, called in this process: it must return something sound, or raise a KvError."""

    call: Callable[[], object]


@dataclass
class Command:
    """A command line, run in this process; `outputs` must not be there if it fails."""

    argv: list[str]
    outputs: list[str] = field(default_factory=list)
    is_json: bool = False


Trial = Reading | Command
Target = Callable[[random.Random, Path], Trial]


def _need(is_so: object, what: str) -> None:
    if not is_so:
        raise Broken(what)


# Tables.


def _cells(rows: pa.Table, rng: random.Random) -> pa.Table:
    """Return `rows` with cells at edges, or a column of another type, gone or doubled."""
    at = rng.randrange(rows.num_columns)
    name, type_ = rows.schema.names[at], rows.schema.types[at]
    kind = rng.randrange(12)
    if kind == 0:
        return rows.remove_column(at)
    if kind == 1:
        return rows.append_column(rng.choice((name, "more", mutate.HOSTILE[2])), rows.column(at))
    if kind == 2:
        other = rng.choice(
            (pa.float64(), pa.string(), pa.int8(), pa.uint64(), pa.binary(), pa.bool_(), pa.list_(pa.int64()))
        )
        return rows.set_column(at, name, pa.nulls(rows.num_rows, other))
    if kind == 3:
        return rows.slice(rng.randrange(rows.num_rows), rng.choice((0, 1, 5)))
    if kind == 4:
        return rows.take(pa.array(rng.sample(range(rows.num_rows), rows.num_rows)))
    try:
        values = rows.column(at).to_pylist()
    except UnicodeDecodeError:
        return rows
    for _ in range(rng.choice((1, 1, 3, len(values)))):
        values[rng.randrange(len(values))] = _cell(type_, rng)
    try:
        if pa.types.is_dictionary(type_):
            return rows.set_column(at, name, pa.array(values, pa.string()).dictionary_encode())
        if pa.types.is_string(type_):
            raw = [
                None if v is None else v if isinstance(v, bytes) else v.encode("utf-8", "surrogatepass") for v in values
            ]
            return rows.set_column(at, name, _text(raw))
        return rows.set_column(at, name, pa.array(values, type_))
    except (pa.ArrowException, OverflowError, UnicodeEncodeError):
        return rows


def _text(raw: list[bytes | None]) -> Any:
    """Return text as it stands, UTF-8 or not."""
    held = pa.array(raw, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(held), held.buffers(), held.null_count)


def _cell(type_: Any, rng: random.Random) -> Any:
    if rng.random() < 0.1:
        return None
    if pa.types.is_integer(type_):
        bits = type_.bit_width - 1
        return rng.choice((mutate.number(rng), 2**bits - 1, -(2**bits)))
    if pa.types.is_list(type_):
        return [mutate.number(rng) for _ in range(rng.choice((0, 1, 3)))]
    return rng.choice((b"\xff\xfe", rng.choice(mutate.HOSTILE)))


def parquet_of(rows: pa.Table, meta: bytes, rng: random.Random) -> bytes:
    """Return a Parquet file with `rows` and our metadata `meta`."""
    out = io.BytesIO()
    kept = rows.replace_schema_metadata({b"kvtrace": meta})
    pq.write_table(
        kept, out, compression=rng.choice(("zstd", "none", "snappy")), use_dictionary=rng.random() < 0.5,
        row_group_size=rng.choice((7, 1 << 20)), write_page_checksum=rng.random() < 0.5,
    )  # fmt: skip
    return out.getvalue()


def csv_of(rows: pa.Table, table: Table, meta: bytes) -> bytes:
    """Return the text of a zstd CSV with `rows` and the metadata `meta`."""
    head = b'# kvtrace {"table":"%s","schema_version":1}\n' % table.name.encode()
    text = [head, ",".join(rows.schema.names).encode() + b"\n"]
    for row in rows.to_pylist():
        cells = [
            "" if v is None else f"[{' '.join(map(str, v))}]" if isinstance(v, list) else str(v) for v in row.values()
        ]
        text.append(",".join(cells).encode() + b"\n")
    return b"".join((*text, b"# end ", meta, b"\n"))


@dataclass
class Damaged:
    """A damaged table file, and the rows that it must have if it is taken; null if only its bytes tell."""

    path: Path
    rows: pa.Table | None


def table_file(table: Table, rng: random.Random, folder: Path, name: str = "t") -> Damaged:
    """Write a damaged file of `table` into `folder`."""
    rows, meta = seeds.TABLES[table.name]
    is_parquet = rng.random() < 0.6
    path = folder / f"{name}{'.parquet' if is_parquet else '.csv.zst'}"
    kind = rng.random()
    if kind < 0.35:
        # Its bytes.
        path.write_bytes(mutate.several(mutate.bytes_of, whole(table.name, is_parquet), rng))
        return Damaged(path, rows)
    if kind < 0.55:
        meta = mutate.several(mutate.tree_of, meta, rng)
    elif is_parquet:
        for _ in range(rng.choice((1, 1, 2))):
            if rows.num_rows:
                rows = _cells(rows, rng)
        meta = meta | {"rows": rows.num_rows}
    encoded = mutate.json_of(meta)
    if rng.random() < 0.1:
        encoded = mutate.bytes_of(encoded, rng)
    if is_parquet:
        path.write_bytes(parquet_of(rows, encoded, rng))
        return Damaged(path, rows)
    text = csv_of(rows, table, encoded)
    is_rows = kind >= 0.55
    path.write_bytes(zstandard.compress(mutate.several(mutate.text_of, text, rng) if is_rows else text))
    return Damaged(path, None if is_rows else rows)


def _whole(table: Table, is_parquet: bool) -> bytes:
    import tempfile

    from kvtrace.core.metadata import decode
    from kvtrace.core.tables import create

    rows, meta = seeds.TABLES[table.name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"t{'.parquet' if is_parquet else '.csv.zst'}"
        with create(path, table, decode(json.dumps(meta).encode(), path)) as out:
            for batch in rows.to_batches():
                out.write(batch)
        return path.read_bytes()


@cache
def whole(name: str, is_parquet: bool) -> bytes:
    """Return the file of the table `name` as our writer makes it."""
    return _whole(TABLES[name], is_parquet)


def read_table(rng: random.Random, folder: Path) -> Trial:
    """Read a table: its rows are as written, and in their ranges."""
    from kvtrace.core.tables import open_table

    table = rng.choice(list(TABLES.values()))
    given = table_file(table, rng, folder)

    def call() -> None:
        reader = open_table(given.path, rng.choice((table, None)))
        found = pa.Table.from_batches(reader.batches(), arrow_schema(reader.table))
        found.validate(full=True)
        _need(reader.meta.rows == found.num_rows, "the metadata counts other rows")
        for column in reader.table.columns:
            if column.type.startswith("int"):
                values = [v for v in found.column(column.name).to_pylist() if v is not None]
                least = -(2**63) if column.least is None else column.least
                _need(all(least <= v <= column.most for v in values), f"{column.name} is out of range")
        if given.rows is not None and reader.table is table:
            _need(found.to_pylist() == given.rows.select(table.names).to_pylist(), "other rows than were written")

    return Reading(call)


def read_bomb(rng: random.Random, folder: Path) -> Trial:
    """Read a small file that unpacks to a large one, or says that it holds far more than it does."""
    from kvtrace.core.tables import open_table

    path = folder / rng.choice(("t.parquet", "t.csv.zst"))
    rows, meta = seeds.TABLES["objects"]
    if path.suffix == ".zst":
        head = b'# kvtrace {"table":"objects","schema_version":1}\nobject_id,key,kind,size_bytes\n'
        part = rng.choice((b"\x00", b"\n", b"0,k,chunk,1\n", b"a")) * (1 << 20)
        packer = zstandard.ZstdCompressor().compressobj()
        path.write_bytes(
            b"".join((packer.compress(head), *(packer.compress(part) for _ in range(BOMB_MIB)), packer.flush()))
        )
    else:
        count = rng.choice((3, 300))
        size = (rng.choice((60, 90)) << 20) if count == 3 else 1
        ends = pa.array([size * n for n in range(count + 1)], pa.int32())
        key = pa.Array.from_buffers(pa.string(), count, [None, ends.buffers()[1], pa.py_buffer(b"k" * size * count)])
        columns = {"object_id": range(count), "key": key, "kind": ["chunk"] * count, "size_bytes": [1] * count}
        made = pa.table(columns).cast(pa.schema([rows.schema.field(n) for n in columns]))
        path.write_bytes(parquet_of(made, mutate.json_of(meta | {"rows": rng.choice((count, 10**12, 2**62))}), rng))

    def call() -> None:
        for _batch in open_table(path).batches():
            pass

    return Reading(call)


BOMB_MIB = 1500


# Files of JSON, TOML and text.


def read_metadata(rng: random.Random, _folder: Path) -> Trial:
    """Decode damaged metadata."""
    from kvtrace.core.metadata import decode, encode

    _rows, meta = rng.choice(list(seeds.TABLES.values()))
    data = mutate.json_of(mutate.several(mutate.tree_of, meta, rng))
    data = mutate.bytes_of(data, rng) if rng.random() < 0.3 else data

    def call() -> None:
        found = decode(data, "t.parquet")
        _need(decode(encode(found), "t.parquet") == found, "metadata does not come back")

    return Reading(call)


def read_run_json(rng: random.Random, folder: Path) -> Trial:
    """Read a damaged run.json."""
    from kvtrace.core.run.run_file import read_run, write_run

    data = mutate.json_of(mutate.several(mutate.tree_of, seeds.RUN, rng))
    (folder / "run.json").write_bytes(mutate.bytes_of(data, rng) if rng.random() < 0.3 else data)

    def call() -> None:
        found = read_run(folder)
        write_run(folder, found)
        _need(read_run(folder) == found, "run.json does not come back")

    return Reading(call)


def read_requests(rng: random.Random, folder: Path) -> Trial:
    """Read a damaged file of requests, of any source."""
    from kvtrace.core.schema import REQUESTS
    from kvtrace.requests.registry import SourceOptions, detect, read
    from kvtrace.requests.requests import MAX_NS, MAX_TOKENS
    from kvtrace.requests.shaping import Reshaping

    kind, path = request_file(rng, folder)

    def call() -> None:
        source = kind if rng.random() < 0.8 else detect(path)
        found = read(source, path, SourceOptions(), Reshaping(), 1)
        count = len(found)
        _need(count > 0, "no request")
        _need((found.arrival_ns >= 0).all() and found.arrival_ns.max() <= MAX_NS, "times out of range")
        _need((found.arrival_ns[1:] >= found.arrival_ns[:-1]).all(), "times go back")
        for tokens in (found.input_tokens, found.output_tokens):
            _need(len(tokens) == count and (tokens >= 0).all() and tokens.max() <= MAX_TOKENS, "tokens out of range")
        _need(
            len(found.block_offsets) == count + 1 and found.block_offsets[-1] == len(found.block_ids), "ids do not fit"
        )
        _need(REQUESTS is not None, "")

    return Reading(call)


def request_file(rng: random.Random, folder: Path) -> tuple[str, Path]:
    """Write a damaged file of requests; return its source and path."""
    from kvtrace.core.schema import REQUESTS

    kind = rng.choice((*seeds.REQUEST_TEXTS, *seeds.ENGINES, "sharegpt", "agentic", "requests"))
    if kind in seeds.ENGINES:
        return kind, _engine_file(kind, rng, folder)
    if kind == "requests":
        return kind, table_file(REQUESTS, rng, folder).path
    path = folder / f"r.{'csv' if kind in ('burstgpt', 'azure') else 'json'}"
    if kind in ("sharegpt", "agentic"):
        tree = seeds.SHAREGPT if kind == "sharegpt" else seeds.AGENTIC
        data = mutate.json_of(mutate.several(mutate.tree_of, tree, rng))
        path.write_bytes(mutate.bytes_of(data, rng) if rng.random() < 0.2 else data)
    elif kind in ("mooncake", "bailian") and rng.random() < 0.7:
        rows = [json.loads(line) for line in seeds.REQUEST_TEXTS[kind].splitlines()]
        at = rng.randrange(len(rows))
        rows[at] = mutate.several(mutate.tree_of, rows[at], rng)
        path.write_bytes(b"\n".join(map(mutate.json_of, rows)) + b"\n")
    else:
        path.write_bytes(mutate.several(mutate.text_of, seeds.REQUEST_TEXTS[kind], rng))
    return kind, path


def _engine_file(kind: str, rng: random.Random, folder: Path) -> Path:
    path = seeds.GOLDEN.parent / "engines" / seeds.ENGINES[kind]
    data = path.read_bytes()
    if path.suffix == ".jsonl" and rng.random() < 0.7:
        rows = [json.loads(line) for line in data.splitlines()]
        at = rng.randrange(len(rows))
        rows[at] = mutate.several(mutate.tree_of, rows[at], rng)
        data = b"\n".join(map(mutate.json_of, rows)) + b"\n"
    else:
        data = mutate.several(mutate.bytes_of if path.suffix != ".jsonl" else mutate.text_of, data, rng)
    target = folder / path.name
    target.write_bytes(data)
    return target


def read_mlperf(rng: random.Random, folder: Path) -> Trial:
    """Convert a damaged trace of the MLPerf benchmark."""
    from kvtrace.core.tables import open_table
    from kvtrace.trace.mlperf_csv import read_into

    path, target = mlperf_file(rng, folder), folder / "out.parquet"

    def call() -> None:
        try:
            state = read_into(path, target, ["kvtrace"], lambda _done: None)
        except BaseException:
            _need(not target.exists(), "a failed conversion leaves a trace")
            raise
        _need(sum(b.num_rows for b in open_table(target).batches()) == state.rows, "other rows than were read")

    return Reading(call)


def mlperf_file(rng: random.Random, folder: Path) -> Path:
    """Write a damaged trace of the MLPerf benchmark."""
    path, text = folder / "m.csv", mutate.several(mutate.text_of, seeds.MLPERF, rng)
    path.write_bytes(zstandard.compress(text) if rng.random() < 0.3 else text)
    return path


def read_model(rng: random.Random, folder: Path) -> Trial:
    """Read a damaged config.json of a model."""
    from kvtrace.model.huggingface import read_model as read

    path = folder / "config.json"
    path.write_bytes(mutate.json_of(mutate.several(mutate.tree_of, seeds.MODEL, rng)))

    def call() -> None:
        model = read(path)
        _need(model.max_context_tokens is None or model.max_context_tokens > 0, "no context")

    return Reading(call)


SETTINGS = (
    "tiers.nvme.capacity=2GiB", "chunk_tokens=16", "workload.prompt_share=0.2", "users=3", "tiers.cpu.capacity=1GiB",
    'match="prefix"', "pad_bytes=4096", "eviction=lru", "gpu=h100",
)  # fmt: skip


def setting(rng: random.Random) -> str:
    """Return a damaged `--set`."""
    name, _, value = rng.choice(SETTINGS).partition("=")
    kind = rng.randrange(5)
    if kind == 0:
        value = str(mutate.number(rng))
    elif kind == 1:
        value = rng.choice((*mutate.HOSTILE, *mutate.FLOATS)).replace("\x00", "")
    elif kind == 2:
        value = rng.choice(("[", "{", "{a=", "['", '"')) * rng.choice(mutate.DEPTH)
    elif kind == 3:
        name = rng.choice(
            ("a." * 3000 + "b", ".", "", "tiers", "tiers.nvme", "tiers.0", name + ".x", "description", name + " ")
        )
    return f"{name}={value}".encode("utf-8", "replace").decode()


def read_preset(rng: random.Random, folder: Path) -> Trial:
    """Read a damaged preset, with a damaged override."""
    from kvtrace.core.config import load_toml, override

    path = folder / "p.toml"
    text = seeds.PRESET
    if rng.random() < 0.7:
        deep = (
            b"\nx = " + b"[" * rng.choice(mutate.DEPTH),
            b"\n" + b"a." * rng.choice(mutate.DEPTH) + b"b = 1",
            b"\nx = " + b"9" * 5000,
        )
        text = text + rng.choice(deep) if rng.random() < 0.2 else mutate.several(_toml, text, rng)
    path.write_bytes(text)
    settings = [setting(rng) for _ in range(rng.choice((0, 1, 1, 2)))]

    def call() -> None:
        from kvtrace.sim.preset import load_preset

        override(load_toml(path), settings)
        load_preset(str(path), settings)

    return Reading(call)


def _toml(text: bytes, rng: random.Random) -> bytes:
    return mutate.text_of(text, rng, "= \n")


READERS: tuple[tuple[Target, int], ...] = (
    (read_table, 30), (read_metadata, 20), (read_run_json, 15), (read_requests, 20), (read_mlperf, 6), (read_model, 12),
    (read_preset, 12),
)  # fmt: skip


# Commands.


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
        (["kvdistill", "report", name, *json_], []), (["kvdistill", "report", name, "-o", "r.csv", "-o", "r.md"], ["r.csv", "r.md"]),
        (["kvdistill", "profile", name, "--tier", "nvme", "-o", "p.json", *json_], ["p.json"]),
        (["kvdistill", "fio", name, "--tier", "nvme", "-o", "jobs", "--fio-version", "3.33", *json_], ["jobs/replay.fio"]),
        (["kvdistill", "sai3", name, "--tier", "nvme", "-o", "jobs", *json_], ["jobs/oplog.tsv.zst"]),
        (["kvdistill", "warp", name, "--tier", "nvme", "-o", "jobs", "--csv"], ["jobs/mixed.yml"]),
        (["kvdistill", "sql", "SELECT op, sum(length_bytes) FROM trace GROUP BY op", name], []),
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
        files |= {"blocks.parquet": whole("blocks", True), "probe.json": json.dumps(probe()).encode()}
    for name, data in files.items():
        (run / name).write_bytes(data)
    victim = rng.choice(list(files))
    tables = {"ops.parquet": OPS, "blocks.parquet": BLOCKS, "series.parquet": SERIES, "requests.parquet": SERVED}
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
        (["kvdistill", "report", "run", "-o", "r.csv", "-o", "r.md", "-o", "r.html"], ["r.csv", "r.md", "r.html"]),
        (["kvdistill", "compare", "run", str(seeds.GOLDEN / "run2"), *json_], []),
        (["kvdistill", "profile", "run", "--tier", "nvme", "-o", "p.json", *json_], ["p.json"]),
        (["kvdistill", "profile", "run/blocks.parquet", "-o", "p.json"], ["p.json"]),
        (["kvdistill", "profile", "run/probe.json", "-o", "p.json"], ["p.json"]),
        (["kvdistill", "fio", "run", "--tier", "nvme", "-o", "jobs", "--fio-version", "3.33"], ["jobs/replay.fio"]),
        (["kvdistill", "sai3", "run", "--tier", "nvme", "-o", "jobs"], ["jobs/oplog.tsv.zst"]),
        (["kvdistill", "warp", "run", "--tier", "nvme", "-o", "jobs"], ["jobs/mixed.yml"]),
        (["kvdistill", "sql", "runs-at-a-glance", "run"], []), (["kvdistill", "sql", "SELECT count(*) FROM ops", "run"], []),
    ))  # fmt: skip
    return Command(argv, outputs, "--json" in argv)


def with_an_import(rng: random.Random, folder: Path) -> Trial:
    """Import a damaged log of another tool."""
    kind = rng.choice(list(seeds.IMPORTS))
    names = []
    for name, data in seeds.IMPORTS[kind].items():
        if kind == "fio-json" and rng.random() < 0.8:
            made = mutate.json_of(mutate.several(mutate.tree_of, seeds.FIO_JSON, rng))
        else:
            delimiters = {"warp": "\t", "sai3": "\t", "fio-log": ","}.get(kind, " ")
            made = mutate.several(lambda d, r, t=delimiters: mutate.text_of(d, r, t), data, rng)
        if kind in ("warp", "sai3") and rng.random() < 0.2:
            made = zstandard.compress(made)
        (folder / name).write_bytes(made)
        names.append(name)
    json_ = ["--json"] if rng.random() < 0.5 else []
    made_files = ["trace.parquet", "ops.parquet", "run.json", "probe.json", "blocks.parquet", "trace.objects.parquet"]
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
    path.write_bytes(mutate.several(_toml, seeds.PRESET, rng) if rng.random() < 0.5 else seeds.PRESET)
    argv = [
        "kvtrace",
        "gen",
        "--users",
        "2",
        "--duration",
        "1s",
        "--max-requests",
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
            ("--drive-size", "--duration", "--seed", "--tp", "--model", "--gpu", "--burstiness", "--request-rate")
        )
        value = rng.choice((str(mutate.number(rng)), rng.choice(mutate.FLOATS), rng.choice(mutate.HOSTILE)))
        argv += [option, value.replace("\x00", "").encode("utf-8", "replace").decode()]
    return Command(argv, ["g.parquet", "g.objects.parquet"])


def with_other_files(rng: random.Random, folder: Path) -> Trial:
    """Run a command on a damaged MLPerf trace, model, profile or partial run."""
    kind = rng.randrange(4)
    if kind == 0:
        return Command(
            ["kvtrace", "convert", str(mlperf_file(rng, folder)), "c.parquet"], ["c.parquet", "c.objects.parquet"]
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
    (run / "run.partial.json").write_bytes(mutate.json_of(mutate.several(mutate.tree_of, partial, rng)))
    (run / "ops.partial.arrow").write_bytes(rng.randbytes(rng.randrange(2000)))
    return Command(_argv(rng, ["kvreplay", "recover", "run"], ["kvdistill", "report", "run"]), ["run/run.json"])


COMMANDS: tuple[tuple[Target, int], ...] = (
    (with_a_trace, 30), (with_a_run, 30), (with_an_import, 25), (with_requests, 15), (with_a_preset, 15),
    (with_other_files, 15),
)  # fmt: skip


def _made(argv: list[str], files: dict[str, bytes], wanted: str) -> Any:
    import tempfile

    from programs import run_cli

    with tempfile.TemporaryDirectory() as folder:
        for name, data in files.items():
            (Path(folder) / name).write_bytes(data)
        run_cli(*argv, cwd=Path(folder))
        return msgspec.json.decode((Path(folder) / wanted).read_bytes())


@cache
def probe() -> Any:
    """Return the content of a probe.json."""
    return _made(["kvdistill", "import", "blkparse", "b.txt", "-o", "out"], seeds.IMPORTS["blkparse"], "out/probe.json")


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
