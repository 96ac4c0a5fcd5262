"""Replays on two real S3 servers by three client libraries: what was put comes back, and only our own objects go."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import zstandard
from object_runs import MIB, environment, in_store, lines_of, object_run, row
from stores import BUCKET, CLIENTS, KEY, SECRET, SERVERS, need_client
from whole import read_table

from kvtrace.core.schema import OPS

if TYPE_CHECKING:
    from collections.abc import Iterator

s3dlio = pytest.importorskip(
    "s3dlio", reason="s3dlio is not installed (pip install -e '.[s3dlio]')"
)


@pytest.fixture(
    scope="module", params=["rclone", pytest.param("seaweedfs", marks=pytest.mark.full)]
)
def store_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    with SERVERS[request.param](tmp_path_factory.mktemp(request.param)) as store:
        in_store(store.url, f"s3dlio.create_bucket('s3://{BUCKET}')")
        yield request.param, store.url


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, store_server: tuple[str, str]) -> str:
    need_client(request.param, store_server[0])
    return request.param


@pytest.fixture
def url(store_server: tuple[str, str]) -> str:
    return store_server[1]


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment().items():
        monkeypatch.setenv(name, value)


WRONG = "a-wrong-secret-key"
LENGTH = 3 * MIB // 2
ROWS = [
    *(row("write", obj, LENGTH + 100 * obj) for obj in range(6)),
    *(row("read", obj, LENGTH + 100 * obj) for obj in range(6)),
    row("read", 1, 5000, offset=8192),
    row("read", 1, MIB + 5000, offset=100),
    row("write", 2, 700),
    row("read", 2, 700),
    row("delete", 3, LENGTH + 300),
    row("read", 9, 2 * MIB),
]


def uri(url: str, path: str) -> str:
    return f"s3://{url.removeprefix('http://')}/{BUCKET}/{path}"


def keys(url: str, prefix: str) -> list[str]:
    return [
        key.split(f"{BUCKET}/", 1)[1] for key in s3dlio.list(uri(url, f"{prefix}/"), recursive=True)
    ]


@pytest.mark.parametrize(
    "options",
    [(), ("--io-bytes", "4MiB", "--speed", "1"), ("--engine", "uring", "--queue-depth", "1")],
    ids=["in buffers of 1 MiB", "in one buffer", "one at a time"],
)
def test_what_is_put_comes_back_whole_and_in_ranges(tmp_path, url, client, options):
    done = object_run(tmp_path, ROWS, "--verify", *options, urls=(url,), client=client)
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)
    assert (run["summary"]["errors"], run["summary"]["operations"]) == (0, len(ROWS))
    assert run["verification"]["corrupt_blocks"] == 0
    assert run["verification"]["checked_blocks"] > 6 * LENGTH // 4096
    facts = run["tiers"]["s3"]
    counts = {kind: count["requests"] for kind, count in facts["requests"].items()}
    # Six objects, one of them again, and one that was there before.
    assert counts == {"put": 6 + 1 + 1, "get": 8, "ranged get": 2, "delete": 1}
    assert (facts["operations_repeated"], facts["found_leftovers"]) == (0, 0)
    ops = read_table(tmp_path / "run" / "ops.parquet", OPS).to_pylist()
    assert {op["engine"] for op in ops} == {client}
    assert keys(url, "runs/a") == []


def test_kept_objects_are_whole_and_the_next_run_removes_them(tmp_path, url, client):
    kept = object_run(
        tmp_path,
        [row("write", 0, 8192)],
        "--keep",
        urls=(url,),
        client=client,
        target=f"{BUCKET}/kept",
    )
    assert kept.returncode == 0, kept.stderr
    marker, key = sorted(keys(url, "kept"), key=lambda key: key.endswith(".kv"))
    assert marker.endswith("/KVREPLAY")
    data = bytes(s3dlio.get(uri(url, key)))
    assert len({data[i : i + 512] for i in range(0, 8192, 512)}) == 16
    again = object_run(
        tmp_path, [row("write", 1, 100)], urls=(url,), client=client, target=f"{BUCKET}/kept"
    )
    assert json.loads(again.stdout)["tiers"]["s3"]["found_leftovers"] == 1
    assert keys(url, "kept") == []


def test_ratios_shape_what_is_put(tmp_path, url, client):
    options = ("--keep", "--compress-ratio", "4")
    done = object_run(
        tmp_path,
        [row("write", 0, 2 * MIB)],
        *options,
        urls=(url,),
        client=client,
        target=f"{BUCKET}/ratios",
    )
    assert done.returncode == 0, done.stderr
    (key,) = (key for key in keys(url, "ratios") if key.endswith(".kv"))
    data = bytes(s3dlio.get(uri(url, key)))
    shrunk = sum(len(zstandard.compress(data[i : i + 4096])) for i in range(0, len(data), 4096))
    assert len(data) / shrunk == pytest.approx(4, rel=0.1)


def test_a_prefix_of_others_is_refused_and_left_alone(tmp_path, url, client):
    s3dlio.put_bytes(uri(url, "others/a/model.bin"), b"precious")
    for prefix in ("others", "others/a"):
        refused = object_run(
            tmp_path,
            [row("write", 0, 100)],
            urls=(url,),
            client=client,
            target=f"{BUCKET}/{prefix}",
        )
        assert refused.returncode == 4
        assert f"s3://{BUCKET}/{prefix}" in refused.stderr
        assert len(lines_of(refused)) == 1
    done = object_run(
        tmp_path,
        [row("write", 0, 100)],
        "--destroy-data",
        urls=(url,),
        client=client,
        target=f"{BUCKET}/others/a",
    )
    assert done.returncode == 0, done.stderr
    assert keys(url, "others") == ["others/a/model.bin"]


def test_a_folder_of_our_name_without_our_marker_is_not_ours(tmp_path, url, client):
    s3dlio.put_bytes(uri(url, "fake/kvreplay-scratch/notes"), b"precious")
    refused = object_run(
        tmp_path,
        [row("write", 0, 100)],
        "--destroy-data",
        urls=(url,),
        client=client,
        target=f"{BUCKET}/fake",
    )
    assert refused.returncode == 4
    assert "kvreplay's" in refused.stderr
    assert keys(url, "fake") == ["fake/kvreplay-scratch/notes"]


def test_a_bucket_that_is_not_there_is_one_line(tmp_path, url, client):
    refused = object_run(
        tmp_path, [row("write", 0, 100)], urls=(url,), client=client, target="no-such-bucket/a"
    )
    assert refused.returncode == 4
    assert "bucket" in refused.stderr
    assert len(lines_of(refused)) == 1


def test_no_secret_is_in_anything_that_is_written_or_said(tmp_path, url, client):
    done = object_run(tmp_path, ROWS, urls=(url,), client=client, target=f"{BUCKET}/secret")
    assert done.returncode == 0, done.stderr
    wrong = environment() | {"AWS_SECRET_ACCESS_KEY": WRONG}
    refused = object_run(
        tmp_path,
        [row("write", 0, 100)],
        urls=(url,),
        client=client,
        target=f"{BUCKET}/x",
        env=wrong,
    )
    assert refused.returncode == 4
    assert "signature" in refused.stderr.lower()
    stranger = environment() | {"AWS_ACCESS_KEY_ID": "AKIDNOBODYKNOWS"}
    unknown = object_run(
        tmp_path,
        [row("write", 0, 100)],
        urls=(url,),
        client=client,
        target=f"{BUCKET}/x",
        env=stranger,
    )
    assert unknown.returncode == 4
    assert "access key" in unknown.stderr.lower() or "InvalidAccessKeyId" in unknown.stderr
    assert "no endpoint URL" not in unknown.stderr
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(files) >= 4
    said = [text.encode() for text in (done.stdout, done.stderr, refused.stdout, refused.stderr)]
    for text in (*said, *(path.read_bytes() for path in files)):
        for secret in (KEY, SECRET, WRONG):
            assert secret.encode() not in text
