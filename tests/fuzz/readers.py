"""Each reader by itself, on damaged input: hundreds of cases a second."""

from __future__ import annotations

import json
import random
from pathlib import Path

import mutate
import pyarrow as pa
import seeds
import zstandard
from damaged_tables import parquet_of, table_file
from trials import Reading, Target, Trial, need

from kvtrace.core.schema import TABLES, arrow_schema


def read_table(rng: random.Random, folder: Path) -> Trial:
    """Read a table: its rows are as written, and in their ranges."""
    from kvtrace.core.tables import open_table

    table = rng.choice(list(TABLES.values()))
    given = table_file(table, rng, folder)

    def call() -> None:
        reader = open_table(given.path, rng.choice((table, None)))
        found = pa.Table.from_batches(reader.batches(), arrow_schema(reader.table))
        found.validate(full=True)
        need(reader.meta.rows == found.num_rows, "the metadata counts other rows")
        for column in reader.table.columns:
            if column.type.startswith("int"):
                values = [v for v in found.column(column.name).to_pylist() if v is not None]
                least = -(2**63) if column.least is None else column.least
                need(
                    all(least <= v <= column.most for v in values), f"{column.name} is out of range"
                )
        if given.rows is not None and reader.table is table:
            need(
                found.to_pylist() == given.rows.select(table.names).to_pylist(),
                "other rows than were written",
            )

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
            b"".join(
                (
                    packer.compress(head),
                    *(packer.compress(part) for _ in range(BOMB_MIB)),
                    packer.flush(),
                )
            )
        )
    else:
        count = rng.choice((3, 300))
        size = (rng.choice((20, 40)) << 20) if count == 3 else 1
        ends = pa.array([size * n for n in range(count + 1)], pa.int32())
        key = pa.Array.from_buffers(
            pa.string(), count, [None, ends.buffers()[1], pa.py_buffer(b"k" * size * count)]
        )
        columns = {
            "object_id": range(count),
            "key": key,
            "kind": ["chunk"] * count,
            "size_bytes": [1] * count,
        }
        made = pa.table(columns).cast(pa.schema([rows.schema.field(n) for n in columns]))
        path.write_bytes(
            parquet_of(
                made, mutate.json_of(meta | {"rows": rng.choice((count, 10**12, 2**62))}), rng
            )
        )

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
        need(decode(encode(found), "t.parquet") == found, "metadata does not come back")

    return Reading(call)


def read_run_json(rng: random.Random, folder: Path) -> Trial:
    """Read a damaged run.json."""
    from kvtrace.core.files import write_json
    from kvtrace.core.run.run_file import read_run

    data = mutate.json_of(mutate.several(mutate.tree_of, seeds.RUN, rng))
    (folder / "run.json").write_bytes(mutate.bytes_of(data, rng) if rng.random() < 0.3 else data)

    def call() -> None:
        found = read_run(folder)
        write_json(folder / "run.json", found)
        need(read_run(folder) == found, "run.json does not come back")

    return Reading(call)


def read_requests(rng: random.Random, folder: Path) -> Trial:
    """Read a damaged file of requests, of any source."""
    from kvtrace.requests.registry import detect, read
    from kvtrace.requests.requests import MAX_NS, MAX_TOKENS
    from kvtrace.requests.reshape import Reshaping

    kind, path = request_file(rng, folder)

    def call() -> None:
        source = kind if rng.random() < 0.8 else detect(path)
        found = read(source, path, {}, Reshaping(), 1)
        count = len(found)
        need(count > 0, "no request")
        need(
            (found.arrival_ns >= 0).all() and found.arrival_ns.max() <= MAX_NS, "times out of range"
        )
        need((found.arrival_ns[1:] >= found.arrival_ns[:-1]).all(), "times go back")
        for tokens in (found.input_tokens, found.output_tokens):
            need(
                len(tokens) == count and (tokens >= 0).all() and tokens.max() <= MAX_TOKENS,
                "tokens out of range",
            )
        need(
            len(found.block_offsets) == count + 1
            and found.block_offsets[-1] == len(found.block_ids),
            "ids do not fit",
        )

    return Reading(call)


OTHER_SOURCES = ("sharegpt", "agentic", "agentx", "servegen", "requests")
"""Sources whose files are made otherwise than by lines."""


def request_file(rng: random.Random, folder: Path) -> tuple[str, Path]:
    """Write a damaged file of requests; return its source and path."""
    from kvtrace.core.schema import REQUESTS

    kind = rng.choice((*seeds.REQUEST_TEXTS, *seeds.ENGINES, *OTHER_SOURCES))
    if kind in seeds.ENGINES:
        return kind, _engine_file(kind, rng, folder)
    if kind == "servegen":
        return kind, _servegen_folder(rng, folder)
    if kind == "requests":
        return kind, table_file(REQUESTS, rng, folder).path
    path = folder / f"r.{'csv' if kind in ('burstgpt', 'azure') else 'json'}"
    if kind in ("sharegpt", "agentic", "agentx"):
        tree = seeds.SHAREGPT if kind == "sharegpt" else seeds.AGENTIC
        data = mutate.json_of(mutate.several(mutate.tree_of, tree, rng))
        path.write_bytes(mutate.bytes_of(data, rng) if rng.random() < 0.2 else data)
    elif kind not in ("burstgpt", "azure") and rng.random() < 0.7:
        rows = [json.loads(line) for line in seeds.REQUEST_TEXTS[kind].splitlines()]
        at = rng.randrange(len(rows))
        rows[at] = mutate.several(mutate.tree_of, rows[at], rng)
        path.write_bytes(b"\n".join(map(mutate.json_of, rows)) + b"\n")
    else:
        path.write_bytes(mutate.several(mutate.text_of, seeds.REQUEST_TEXTS[kind], rng))
    return kind, path


def _servegen_folder(rng: random.Random, folder: Path) -> Path:
    clients = folder / "clients"
    clients.mkdir()
    damaged = rng.choice(list(seeds.SERVEGEN))
    for name, data in seeds.SERVEGEN.items():
        if name != damaged:
            (clients / name).write_bytes(data)
        elif name.endswith(".json") and rng.random() < 0.7:
            tree = mutate.several(mutate.tree_of, json.loads(data), rng)
            (clients / name).write_bytes(mutate.json_of(tree))
        else:
            (clients / name).write_bytes(mutate.several(mutate.text_of, data, rng))
    return clients


def _engine_file(kind: str, rng: random.Random, folder: Path) -> Path:
    path = seeds.GOLDEN.parent / "engines" / seeds.ENGINES[kind]
    data = path.read_bytes()
    if path.suffix == ".jsonl" and rng.random() < 0.7:
        rows = [json.loads(line) for line in data.splitlines()]
        at = rng.randrange(len(rows))
        rows[at] = mutate.several(mutate.tree_of, rows[at], rng)
        data = b"\n".join(map(mutate.json_of, rows)) + b"\n"
    else:
        data = mutate.several(
            mutate.bytes_of if path.suffix != ".jsonl" else mutate.text_of, data, rng
        )
    target = folder / path.name
    target.write_bytes(data)
    return target


def read_import(rng: random.Random, folder: Path) -> Trial:
    """Import a damaged log of another tool, without the start of a command."""
    from kvdistill.formats.formats import Format, ImportOptions
    from kvdistill.formats.importing import import_files
    from kvtrace.core.tables import open_table

    kind, files = import_files_of(rng, folder)
    out = folder / "out"

    def call() -> None:
        account = import_files(files, ImportOptions(Format(kind)), out, ["kvdistill"])
        need(account.rows_kept >= 0, "fewer than no rows are kept")
        for path in out.glob("*.parquet"):
            rows = sum(batch.num_rows for batch in open_table(path).batches())
            need(rows == open_table(path).meta.rows, "the metadata counts other rows")

    return Reading(call)


def import_files_of(rng: random.Random, folder: Path) -> tuple[str, list[Path]]:
    """Write damaged files of a format that is imported; return the format and their paths."""
    kind = rng.choice((*seeds.IMPORTS, "blocks"))
    if kind == "blocks":
        return kind, [table_file(TABLES["blocks"], rng, folder).path]
    files = []
    for name, data in seeds.IMPORTS[kind].items():
        path = folder / name
        if path.suffix == ".json" and rng.random() < 0.8:
            made = mutate.json_of(mutate.several(mutate.tree_of, json.loads(data), rng))
        elif kind == "lmcache-l2":
            made = mutate.several(mutate.bytes_of, data, rng)
        else:
            delimiter = {"warp": "\t", "sai3": "\t", "fio-log": ",", "lmcache-bench": ","}.get(
                kind, " "
            )
            made = mutate.several(lambda d, r, t=delimiter: mutate.text_of(d, r, t), data, rng)
        if kind in ("warp", "sai3") and rng.random() < 0.2:
            made = zstandard.compress(made)
        path.write_bytes(made)
        files.append(path)
    return kind, files


def read_mlperf(rng: random.Random, folder: Path) -> Trial:
    """Convert a damaged trace of the MLPerf benchmark."""
    from kvtrace.core.tables import open_table
    from kvtrace.trace.mlperf_csv import read_into

    path, target = mlperf_file(rng, folder), folder / "out.parquet"

    def call() -> None:
        try:
            state = read_into(path, target, ["kvtrace"], lambda _done: None)
        except BaseException:
            need(not target.exists(), "a failed conversion leaves a trace")
            raise
        need(
            sum(b.num_rows for b in open_table(target).batches()) == state.rows,
            "other rows than were read",
        )

    return Reading(call)


def mlperf_file(rng: random.Random, folder: Path) -> Path:
    """Write a damaged trace of the MLPerf benchmark."""
    path, text = folder / "m.csv", mutate.several(mutate.text_of, seeds.MLPERF, rng)
    path.write_bytes(zstandard.compress(text) if rng.random() < 0.3 else text)
    return path


def read_model(rng: random.Random, folder: Path) -> Trial:
    """Read a damaged config.json of a model."""
    from kvtrace.llm.huggingface import read_model as read

    path = folder / "config.json"
    path.write_bytes(mutate.json_of(mutate.several(mutate.tree_of, seeds.MODEL, rng)))

    def call() -> None:
        model = read(path)
        need(model.max_context_tokens is None or model.max_context_tokens > 0, "no context")

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
            (
                "a." * 3000 + "b",
                ".",
                "",
                "tiers",
                "tiers.nvme",
                "tiers.0",
                name + ".x",
                "description",
                name + " ",
            )
        )
    return f"{name}={value}".encode("utf-8", "replace").decode()


def read_preset(rng: random.Random, folder: Path) -> Trial:
    """Read a damaged preset, with a damaged override."""
    path = folder / "p.toml"
    text = seeds.PRESET
    if rng.random() < 0.7:
        deep = (
            b"\nx = " + b"[" * rng.choice(mutate.DEPTH),
            b"\n" + b"a." * rng.choice(mutate.DEPTH) + b"b = 1",
            b"\nx = " + b"9" * 5000,
        )
        text = text + rng.choice(deep) if rng.random() < 0.2 else mutate.several(toml_of, text, rng)
    path.write_bytes(text)
    settings = [setting(rng) for _ in range(rng.choice((0, 1, 1, 2)))]

    def call() -> None:
        from kvtrace.core.config import load_toml, override
        from kvtrace.sim.presets.preset import load_preset

        override(load_toml(path), settings)
        load_preset(str(path), settings)

    return Reading(call)


def toml_of(text: bytes, rng: random.Random) -> bytes:
    return mutate.text_of(text, rng, "= \n")


READERS: tuple[tuple[Target, int], ...] = (
    (read_table, 30), (read_metadata, 20), (read_run_json, 15), (read_requests, 20), (read_import, 2), (read_mlperf, 6), (read_model, 12),
    (read_preset, 12),
)  # fmt: skip
