"""Foreign files made at random, and a plain second reader of each format that kvdistill imports.

A maker writes valid files. A reader follows the description of the format alone, with Python's
`json`, `csv` and `re`, so that it shares no mistake with `kvdistill/formats`. It returns operations
as (start ns, operation, object, offset, bytes, end ns), or figures by name.
"""

from __future__ import annotations

import csv
import json
import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec

S, MS, US = 10**9, 10**6, 10**3
Json = dict[str, Any]
EPOCH_S = 1_790_000_000


class Op(NamedTuple):
    """An operation; its time counts from the first one."""

    start_ns: int
    kind: str
    name: str
    offset: int
    length: int
    end_ns: int | None


def from_first(ops: list[Op]) -> list[Op]:
    """`ops` in order of time, from 0 on."""
    first = min(op.start_ns for op in ops)
    ended = [None if op.end_ns is None else op.end_ns - first for op in ops]
    moved = [
        op._replace(start_ns=op.start_ns - first, end_ns=end)
        for op, end in zip(ops, ended, strict=True)
    ]
    return sorted(moved, key=lambda op: op.start_ns)


def rank_of(values: list[int], percent: float) -> int | None:
    """The nearest rank percentile; None of too few values."""
    if len(values) < round(100 / (100 - percent)):
        return None
    return sorted(values)[math.ceil(len(values) * percent / 100 - 1e-9) - 1]


# Op logs


def rfc3339(ns: int) -> str:
    time = datetime.fromtimestamp(ns // S, UTC)
    return f"{time:%Y-%m-%dT%H:%M:%S}.{ns % S:09}Z"


def make_oplog(folder: Path, rng: Random) -> list[Path]:
    names = ["idx", "thread", "op", "client_id", "n_objects", "bytes", "endpoint", "file", "error"]
    names += ["start", "first_byte", "end"]
    paths = []
    for number in range(rng.randint(1, 2)):
        text = ["\t".join([*names, "duration_ns"])]
        for n in range(rng.randint(1, 30)):
            start = EPOCH_S * S + rng.randrange(10**10)
            took = rng.randrange(10**8)
            op = "PUT" if not n else rng.choice(("GET", "GET", "PUT", "DELETE", "LIST", "STAT"))
            size = 0 if op == "DELETE" else rng.randrange(10**6)
            row = [n, 0, op, "c", 1, size, "e", f"o/{rng.randrange(5)}", "", rfc3339(start), ""]
            row += [rfc3339(start + took) if rng.random() < 0.8 else "", took]
            text.append("\t".join(map(str, row)))
        text.append("# a comment")
        paths.append(folder / f"{number}.tsv")
        paths[-1].write_text("\n".join(text) + "\n")
    return paths


def read_oplog(paths: list[Path]) -> list[Op]:
    def ns(text: str) -> int:
        whole, _, part = text.removesuffix("Z").partition(".")
        return int(datetime.fromisoformat(whole + "+00:00").timestamp()) * S + int(part)

    kinds = {"GET": "read", "PUT": "write", "DELETE": "delete"}
    rows = [
        row
        for path in paths
        for row in csv.DictReader(path.read_text().splitlines(), delimiter="\t")
        if row["op"] in kinds
    ]
    ops = []
    for row in rows:
        start = ns(row["start"])
        end = ns(row["end"]) if row["end"] else start + int(row["duration_ns"])
        ops.append(Op(start, kinds[row["op"]], row["file"], 0, int(row["bytes"]), end))
    return from_first(ops)


# fio


def make_iolog(folder: Path, rng: Random) -> list[Path]:
    version, path = rng.choice((2, 3)), folder / "x.log"
    text, us = [f"fio version {version} iolog"], 0

    def add(line: str) -> None:
        text.append(line if version == 2 else f"{us} {line}")

    for name in ("a", "b"):
        add(f"/d/{name} add")
        add(f"/d/{name} open")
    for n in range(rng.randint(1, 30)):
        us += rng.randrange(9000)
        if version == 2 and rng.random() < 0.4:
            us = us // 1000 * 1000
            add(f"/d/a wait {us // 1000} 0")
        action = "read" if not n else rng.choice(("read", "write", "write", "trim", "sync"))
        add(
            f"/d/{rng.choice('ab')} {action} {rng.randrange(100) * 4096} {rng.randint(1, 9) * 4096}"
        )
    path.write_text("\n".join(text) + "\n")
    return [path]


def read_iolog(paths: list[Path]) -> list[Op]:
    head, *rest = paths[0].read_text().splitlines()
    ops, ns = [], 0
    for line in rest:
        fields = line.split()
        if "version 3" in head:
            ns = int(fields.pop(0)) * US
        elif fields[1] == "wait":
            ns = int(fields[2]) * MS
        if fields[1] in ("read", "write"):
            ops.append(Op(ns, fields[1], fields[0], int(fields[2]), int(fields[3]), None))
    return from_first(ops)


def make_latencies(folder: Path, rng: Random) -> list[Path]:
    paths = []
    for job in range(1, rng.randint(2, 3)):
        rows = []
        for n in range(rng.randint(2, 30)):
            took = rng.randint(1, 9 * MS)
            direction = 0 if not n else rng.choice((0, 1, 1, 2))
            row = [10 + rng.randrange(5000), took, direction, 4096 * rng.randint(1, 8)]
            rows.append([*row, 4096 * (n + rng.randrange(2, 99)), 0])
        paths.append(folder / f"job_lat.{job}.log")
        paths[-1].write_text("".join(", ".join(map(str, row)) + "\n" for row in rows))
    return paths


def read_latencies(paths: list[Path]) -> list[Op]:
    ops = []
    for path in paths:
        for line in path.read_text().splitlines():
            ms, took, direction, length, offset, _priority = map(int, line.split(", "))
            start = ms * MS - took
            if direction < 2:
                kind = ("read", "write")[direction]
                ops.append(Op(start, kind, "job", offset, length, start + took))
    return from_first(ops)


def make_rates(folder: Path, rng: Random) -> list[Path]:
    """Logs of bandwidth and IOPS over windows of 500 ms."""
    paths = []
    for kind in ("bw", "iops"):
        rows, ms = [], 0
        for _ in range(rng.randint(2, 20)):
            ms += 500
            # Even rates, so that half a second of them is a whole number.
            rows += [f"{ms}, {2 * rng.randrange(4500)}, {direction}, 0, 0" for direction in (0, 1)]
        paths.append(folder / f"job_{kind}.1.log")
        paths[-1].write_text("\n".join(rows) + "\n")
    return paths


def read_rates(paths: list[Path]) -> Json:
    totals: Json = {}
    for path in paths:
        unit = 1024 if "_bw" in path.name else 1
        name = "bytes" if "_bw" in path.name else "operations"
        for line in path.read_text().splitlines():
            _ms, value, direction, *_ = map(int, line.split(", "))
            key = ("read", "write")[direction], name
            totals[key] = totals.get(key, 0) + value * unit / 2
    return {f"{op} {name}": round(total) for (op, name), total in totals.items()}


def make_fio_json(folder: Path, rng: Random) -> list[Path]:
    jobs = []
    for n in range(rng.randint(1, 3)):
        job: Json = {"jobname": f"j{n}", "groupid": 0, "error": 0, "job_runtime": 9000}
        for name in ("read", "write", "trim"):
            count = rng.choice((0, rng.randint(1, 999))) if n or name != "read" else 7
            bins = {str(rng.randrange(1, 50) * 1000): rng.randint(1, 99) for _ in range(5)}
            total = sum(bins.values())
            job[name] = {
                "io_bytes": count * 4096,
                "bw_bytes": rng.randrange(10**6),
                "iops": rng.randrange(9000) / 8,
                "runtime": rng.randint(1, 9000),
                "total_ios": count,
                "lat_ns": {"min": 1, "max": 99, "mean": 5.0, "N": total},
                "clat_ns": {"max": 60_000, "mean": 5.0, "N": total, "bins": bins},
            }
        jobs.append(job)
    path = folder / "f.json"
    warning = "fio: a warning before the result\n" if rng.random() < 0.5 else ""
    path.write_text(warning + json.dumps({"fio version": "fio-3.36", "jobs": jobs}, indent=1))
    return [path]


def read_fio_json(paths: list[Path]) -> Json:
    text = paths[0].read_text()
    figures = {}
    for job in json.loads(text[text.index("{") :])["jobs"]:
        for name in ("read", "write"):
            direction = job[name]
            if not direction["total_ios"]:
                continue
            bins = direction["clat_ns"]["bins"].items()
            values = [int(value) for value, count in bins for _ in range(count)]
            figures[f"{job['jobname']} {name}"] = [
                direction["total_ios"],
                direction["io_bytes"],
                direction["runtime"] * MS,
                direction["bw_bytes"],
                *(rank_of(values, percent) for percent in (50, 95, 99)),
            ]
    return figures


# Traces of the block layer


def make_bpftrace(folder: Path, rng: Random) -> list[Path]:
    text = ["Attaching 9 probes...", ""]
    for name in rng.sample(["d2c_read_us", "d2c_write_us", "q2d_read_us", "vfs_read_us"], 3):
        text.append(f"@{name}: ")
        for power in range(rng.randint(1, 12)):
            low, high = f"{1 << power}", f"{2 << power}"
            if power >= 10:
                low, high = f"{1 << power - 10}K", f"{2 << power - 10}K"
            text.append(f"[{low}, {high})      {rng.randrange(50)} |@@@   |")
        text.append("")
    path = folder / "b.txt"
    path.write_text("\n".join(text) + "\n")
    return [path]


def read_bpftrace(paths: list[Path]) -> Json:
    figures: Json = {}
    name = ""
    for line in paths[0].read_text().splitlines():
        head = re.fullmatch(r"@(\w+)_us: ", line)
        bucket = re.match(r"\[(\d+)(K?), \d+K?\)\s+(\d+)", line)
        if head:
            name = head[1]
            figures[name] = []
        elif bucket and int(bucket[3]):
            low_us = int(bucket[1]) * (1024 if bucket[2] else 1)
            figures[name].append((low_us * US, int(bucket[3])))
    return {name: buckets for name, buckets in figures.items() if buckets}


def make_blkparse(folder: Path, rng: Random) -> list[Path]:
    events: list[tuple[int, str]] = []
    ns = 0
    for n in range(rng.randint(1, 25)):
        ns += rng.randint(1, 10**7)
        device = rng.choice(("8,0", "8,16"))
        sector, sectors = n * 4096, 8 * rng.randint(1, 32)
        rwbs, where = rng.choice(("R", "WS", "RA")), f"{sector} + {sectors}"
        times = [ns, ns + rng.randint(1, 9) * 1000]
        times.append(times[-1] + rng.randint(1, 9) * 10_000)
        for action, at in zip("QDC", times, strict=True):
            said = "[0]" if action == "C" else "[fio]"
            second = f"{at // S}.{at % S:09}"
            events.append(
                (at, f"  {device}    1   1   {second}  697  {action}  {rwbs} {where} {said}")
            )
    events.sort()
    path = folder / "p.txt"
    path.write_text("\n".join(text for _, text in events) + "\nCPU0 (8,0):\n Reads Queued: 9\n")
    return [path]


def blkparse_requests(path: Path) -> list[tuple[str, int, int, str, int, int, int]]:
    """Device, sector, bytes, kind, queueing, issue and completion of each request."""
    requests: dict[tuple[str, str], Json] = {}
    for line in path.read_text().splitlines():
        fields = line.split()
        if len(fields) < 11 or "," not in fields[0]:
            continue
        whole, part = fields[3].split(".")
        request = requests.setdefault((fields[0], fields[7]), {})
        request |= {fields[5]: int(whole) * S + int(part), "rwbs": fields[6], "n": int(fields[9])}
    return [
        (device, int(sector), 512 * r["n"], r["rwbs"], r["Q"], r["D"], r["C"])
        for (device, sector), r in requests.items()
    ]


def read_blkparse(paths: list[Path]) -> Json:
    return {"requests": sorted(blkparse_requests(paths[0]))}


def make_blocks(folder: Path, rng: Random) -> list[Path]:
    from kvdistill.formats.formats import Format, ImportOptions
    from kvdistill.formats.importing import import_files

    (path,) = make_blkparse(folder, rng)
    text = path.read_text().replace("8,16", "8,0")
    path.write_text(text)
    import_files([path], ImportOptions(Format.BLKPARSE), folder / "blk", ["kvdistill"])
    return [folder / "blk"]


def read_blocks(paths: list[Path]) -> list[Op]:
    """Starts of requests on their addresses, by the text from which the table was made."""
    requests = blkparse_requests(paths[0].parent / "p.txt")
    ops = [
        Op(queued, "write" if "W" in rwbs else "read", f"{sector}", 0, length, None)
        for _device, sector, length, rwbs, queued, _issue, _end in requests
    ]
    return from_first(ops)


# Results of serving benchmarks


def make_vllm_bench(folder: Path, rng: Random) -> list[Path]:
    count = rng.randint(1, 120)
    result: Json = {"date": "20261122-074324", "duration": rng.randint(1, 800) / 8}
    result |= {"completed": count, "failed": rng.randrange(3), "total_input_tokens": 160}
    result |= {"total_output_tokens": rng.randrange(9000), "model_id": "tiny"}
    result["ttfts"] = [rng.randrange(1, 9000) / 1024 for _ in range(count)]
    result["itls"] = [[rng.randrange(1, 90) / 1024] * rng.randrange(3) for _ in range(count)]
    result["errors"] = [rng.choice(("", "", "timeout")) for _ in range(count)]
    if rng.random() < 0.3:
        for name in ("ttfts", "itls", "errors"):
            del result[name]
        result["median_ttft_ms"] = rng.randrange(1, 900) / 8
    path = folder / "v.json"
    path.write_text(json.dumps(result))
    return [path]


def read_vllm_bench(paths: list[Path]) -> Json:
    result = json.loads(paths[0].read_text())
    figures: Json = {"requests": result["completed"], "failed_requests": result["failed"]}
    figures["output_tokens"] = result["total_output_tokens"]
    figures["output_tokens_per_s"] = result["total_output_tokens"] / result["duration"]
    if "ttfts" in result:
        is_good = [not error for error in result["errors"]]
        first = [round(t * S) for t, good in zip(result["ttfts"], is_good, strict=True) if good]
        if first:
            figures["first_token p50"] = rank_of(first, 50)
            figures["first_token count"] = len(first)
    else:
        figures["first_token p50"] = round(result["median_ttft_ms"] * MS)
    return figures


def make_aiperf_records(folder: Path, rng: Random) -> list[Path]:
    rows = []
    for n in range(rng.randint(1, 120)):
        start = EPOCH_S * S + rng.randrange(10**10)
        metadata: Json = {"request_start_ns": start, "request_end_ns": start + rng.randrange(10**9)}
        metadata["benchmark_phase"] = "profiling" if not n or rng.random() < 0.8 else "warmup"
        metrics = {
            "time_to_first_token": {"value": rng.randrange(1, 9000) / 8, "unit": "ms"},
            "input_sequence_length": {"value": rng.randrange(900), "unit": "tokens"},
            "output_sequence_length": {"value": rng.randrange(90), "unit": "tokens"},
        }
        error = {"message": "x"} if n and rng.random() < 0.2 else None
        rows.append({"metadata": metadata, "metrics": metrics, "error": error})
    path = folder / "profile_export.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [path]


def read_aiperf_records(paths: list[Path]) -> Json:
    rows = [json.loads(line) for line in paths[0].read_text().splitlines()]
    rows = [row for row in rows if row["metadata"]["benchmark_phase"] != "warmup"]
    good = [row for row in rows if row["error"] is None]
    first = [round(row["metrics"]["time_to_first_token"]["value"] * MS) for row in good]
    return {
        "requests": len(good),
        "failed_requests": len(rows) - len(good),
        "input_tokens": sum(row["metrics"]["input_sequence_length"]["value"] for row in good),
        "output_tokens": sum(row["metrics"]["output_sequence_length"]["value"] for row in good),
        "first_token p50": rank_of(first, 50),
        "first_token count": len(first),
    }


def make_lmcache_bench(folder: Path, rng: Random) -> list[Path]:
    path = folder / "l.csv"
    names = "successful ttft request_latency num_input_tokens num_output_tokens decode_speed"
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, [*names.split(), "submit_time", "finish_time", "error"])
        table.writeheader()
        for n in range(rng.randint(1, 120)):
            is_good, start = not n or rng.random() < 0.8, 1000 + rng.randrange(800) / 8
            row: Json = {"successful": is_good, "num_input_tokens": rng.randrange(900)}
            row |= {"ttft": rng.randrange(1, 900) / 1024, "request_latency": 1.5}
            row |= {
                "num_output_tokens": rng.randrange(90),
                "decode_speed": rng.choice((0.0, 200.0)),
            }
            table.writerow(row | {"submit_time": start, "finish_time": start + 1.5, "error": ""})
    return [path]


def read_lmcache_bench(paths: list[Path]) -> Json:
    rows = list(csv.DictReader(paths[0].read_text().splitlines()))
    good = [row for row in rows if row["successful"] == "True"]
    first = [round(float(row["ttft"]) * S) for row in good]
    return {
        "requests": len(good),
        "failed_requests": len(rows) - len(good),
        # LMCache's own summary counts the prompts of failed requests, too.
        "input_tokens": sum(int(row["num_input_tokens"]) for row in rows),
        "output_tokens": sum(int(row["num_output_tokens"]) for row in rows),
        "first_token p50": rank_of(first, 50),
        "first_token count": len(first),
    }


# LMCache's L2 adapter


def make_l2(folder: Path, rng: Random) -> list[Path]:
    frames: list[Json] = [
        {
            "type": "header",
            "magic": b"LMCT",
            "format_version": 1,
            "level": "l2",
            "t_wall_start": 5.0,
        }
    ]
    for n in range(rng.randint(1, 15)):
        time = rng.randrange(800) / 8
        kind = "store" if not n else rng.choice(("store", "load_task", "lookup_task"))
        keys = [
            {"__t__": "ObjectKey", "v": {"chunk_hash": bytes([h]), "model_name": "m", "kv_rank": 0}}
            for h in rng.sample(range(9), rng.randint(1, 4))
        ]
        sizes = [4096 * rng.randint(1, 9) for _ in keys]
        task = {"adapter_index": 0, "task_id": n}
        ends = {"store": {"succeeded_count": len(keys), "failed_count": 0}}
        ends["load_task"] = {"success_indices": list(range(len(keys)))}
        records = [("submitted", time, task | {"keys": keys, "object_sizes": sizes})]
        if not n or rng.random() < 0.9:
            took = rng.randint(1, 80) / 8
            records.append(("completed", time + took, task | ends.get(kind, {})))
        for event, second, args in records:
            record = {"type": "record", "t_mono": second, "qualname": f"l2.{kind}.{event}"}
            frames.append(record | {"args": args})
    path = folder / "l2.lct"
    encoded = [msgspec.msgpack.encode(frame) for frame in frames]
    path.write_bytes(b"".join(struct.pack(">I", len(frame)) + frame for frame in encoded))
    return [path]


def read_l2(paths: list[Path]) -> list[Op]:
    data, records = paths[0].read_bytes(), []
    while data:
        (length,) = struct.unpack(">I", data[:4])
        records.append(msgspec.msgpack.decode(data[4 : 4 + length]))
        data = data[4 + length :]
    names = {"l2.store": "write", "l2.load_task": "read"}
    ends = {
        (r["qualname"].rpartition(".")[0], r["args"]["task_id"]): round(r["t_mono"] * S)
        for r in records[1:]
        if r["qualname"].endswith(".completed")
    }
    ops = []
    for record in records[1:]:
        kind, _, event = record["qualname"].rpartition(".")
        end = ends.get((kind, record["args"]["task_id"]))
        if event == "submitted" and kind in names and end is not None:
            for key, size in zip(
                record["args"]["keys"], record["args"]["object_sizes"], strict=True
            ):
                name = f"m/0/0/{key['v']['chunk_hash'].hex()}"
                ops.append(Op(round(record["t_mono"] * S), names[kind], name, 0, size, end))
    return from_first(ops)


@dataclass(frozen=True)
class Pair:
    """A maker of files of a format, a plain reader of them, and the tables to compare."""

    format: str
    make: Callable[[Path, Random], list[Path]]
    read: Callable[[list[Path]], Any]
    result: str = "operations"
    """What the import is compared by: operations, or figures of run.json or probe.json."""


PAIRS = {
    "sai3": Pair("sai3", make_oplog, read_oplog),
    "warp": Pair("warp", make_oplog, read_oplog),
    "fio-iolog": Pair("fio-iolog", make_iolog, read_iolog),
    "fio-log": Pair("fio-log", make_latencies, read_latencies),
    "fio-log-rates": Pair("fio-log", make_rates, read_rates, "totals"),
    "fio-json": Pair("fio-json", make_fio_json, read_fio_json, "figures"),
    "bpftrace": Pair("bpftrace", make_bpftrace, read_bpftrace, "histograms"),
    "blkparse": Pair("blkparse", make_blkparse, read_blkparse, "blocks"),
    "blocks": Pair("blocks", make_blocks, read_blocks, "addresses"),
    "vllm-bench": Pair("vllm-bench", make_vllm_bench, read_vllm_bench, "serving"),
    "aiperf": Pair("aiperf", make_aiperf_records, read_aiperf_records, "serving"),
    "lmcache-bench": Pair("lmcache-bench", make_lmcache_bench, read_lmcache_bench, "serving"),
    "lmcache-l2": Pair("lmcache-l2", make_l2, read_l2),
}
