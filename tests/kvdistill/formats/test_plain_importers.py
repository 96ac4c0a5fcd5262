"""A plain second reader of each imported format agrees in operations, bytes, times and figures."""

from __future__ import annotations

import json
from random import Random

import pyarrow.parquet as pq
import pytest
from plain_imports import PAIRS, Op

from kvdistill.formats.formats import Format, ImportOptions
from kvdistill.formats.importing import import_files

FILES = 8
"""Imports a format in a plain run of the tests; `-m full` makes ten times as many."""


def operations(out):
    """The operations of an import: of its trace, with the ends of its run if it has one."""
    trace = pq.read_table(out / "trace.parquet").to_pylist()
    objects = {o["object_id"]: o for o in pq.read_table(out / "trace.objects.parquet").to_pylist()}
    ends = [None] * len(trace)
    if (out / "ops.parquet").exists():
        ends = [row["completed_ns"] for row in pq.read_table(out / "ops.parquet").to_pylist()]
    return [
        Op(
            row["ts_ns"],
            row["op"],
            objects[row["object_id"]]["key"],
            row["offset_bytes"],
            0 if row["op"] == "delete" else row["length_bytes"],
            end,
        )
        for row, end in zip(trace, ends, strict=True)
    ]


def addresses(out):
    """The operations of an import, with objects numbered by first appearance."""
    return with_numbers(operations(out))


def with_numbers(ops):
    names = {}
    numbered = [op._replace(name=str(names.setdefault(op.name, len(names)))) for op in ops]
    return sorted(numbered, key=in_full)


def run_of(out):
    return json.loads((out / "run.json").read_text())


def figures(out):
    return {
        f"{row['tier']} {row['op']}": [
            row["operations"],
            row["bytes"],
            row["span_ns"],
            row["bandwidth_bytes_per_s"],
            *(row["latency"][f"{name}_ns"] for name in ("p50", "p95", "p99")),
        ]
        for row in run_of(out)["summary"]["figures"]
    }


def totals(out):
    return {
        f"{row['op']} {name}": row[name]
        for row in run_of(out)["summary"]["figures"]
        for name in ("bytes", "operations")
    }


def serving(out):
    result = run_of(out)["serving"]
    first = result["first_token"]
    if first:
        result |= {"first_token p50": first["p50_ns"], "first_token count": first.get("count")}
    return result


def histograms(out):
    probe = json.loads((out / "probe.json").read_text())
    found = {}
    for op, direction in probe["block"]["directions"].items():
        for layer in ("q2d", "d2c"):
            found[f"{layer}_{op}"] = direction[layer]["log2_ns"]
    times = probe["application"]["times"] if probe["application"] else {}
    found |= {f"vfs_{kind}": histogram["log2_ns"] for kind, histogram in times.items()}
    return {
        name: [(bucket["from"], bucket["count"]) for bucket in buckets]
        for name, buckets in found.items()
        if buckets
    }


def blocks(out):
    names = ("device", "sector", "bytes", "rwbs", "insert_ns", "issue_ns", "complete_ns")
    rows = pq.read_table(out / "blocks.parquet").to_pylist()
    return {"requests": sorted(tuple(row[name] for name in names) for row in rows)}


RESULTS = {
    "operations": operations,
    "addresses": addresses,
    "figures": figures,
    "totals": totals,
    "serving": serving,
    "histograms": histograms,
    "blocks": blocks,
}


def in_full(op):
    """The order of operations, of which several may start at once."""
    return (*op[:5], -1 if op.end_ns is None else op.end_ns)


def check(name, seed, folder):
    pair, rng = PAIRS[name], Random(f"{name} {seed}")  # noqa: S311 - a test
    paths = pair.make(folder, rng)
    expected = pair.read(paths)
    out = folder / "out"
    import_files(paths, ImportOptions(Format(pair.format)), out, ["kvdistill", "import"])
    found = RESULTS[pair.result](out)
    if pair.result == "serving":
        for field, value in expected.items():
            assert found[field] == pytest.approx(value), field
    elif pair.result == "operations":
        assert sorted(found, key=in_full) == sorted(expected, key=in_full)
    elif pair.result == "addresses":
        assert found == with_numbers(expected)
    else:
        assert found == expected


@pytest.mark.parametrize("name", PAIRS)
def test_a_plain_importer_agrees(tmp_path, name):
    for seed in range(FILES):
        (tmp_path / str(seed)).mkdir()
        check(name, seed, tmp_path / str(seed))


@pytest.mark.full
@pytest.mark.parametrize("name", PAIRS)
def test_a_plain_importer_agrees_on_many_files(tmp_path, name):
    for seed in range(FILES, 10 * FILES):
        (tmp_path / str(seed)).mkdir()
        check(name, seed, tmp_path / str(seed))


def test_every_format_has_a_plain_importer():
    assert {pair.format for pair in PAIRS.values()} == set(Format)
