"""The three client libraries of S3 do the same: what they read, count, repeat and refuse."""

from __future__ import annotations

import errno
import json
import time
from typing import TYPE_CHECKING

import pytest
from conftest import run_cli, write_trace
from object_runs import MIB, environment, in_store, lines_of, object_run, row
from stores import BUCKET, CLIENTS, SERVERS, Stub, free_port, need_client, stub

import kvreplay
from kvreplay.tiers.s3_clients import store_client
from kvreplay.tiers.s3_clients.address import Address
from kvreplay.tiers.s3_clients.make_client import ClientName
from kvreplay.tiers.s3_clients.store_client import Balance, StoreClient
from kvtrace.core.metadata import TierFacts
from kvtrace.core.run.run_file import read_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytest.importorskip("s3dlio", reason="s3dlio, which makes the buckets, is not installed")
LENGTHS = [0, 1, 4096, 3 * MIB + 5, 17 * MIB]


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(store_client, "FIRST_WAIT_S", 0.001)


@pytest.fixture
def store() -> Iterator[Stub]:
    with stub() as made:
        yield made


@pytest.fixture(
    scope="module", params=["stub", "rclone", pytest.param("seaweedfs", marks=pytest.mark.full)]
)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    if request.param == "stub":
        with stub() as made:
            yield request.param, made.url
        return
    with SERVERS[request.param](tmp_path_factory.mktemp(request.param)) as started:
        in_store(started.url, f"s3dlio.create_bucket('s3://{BUCKET}')")
        yield request.param, started.url


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> str:
    need_client(request.param)
    return request.param


@pytest.fixture
def connect(client: str, server: tuple[str, str]) -> Iterator[Callable[..., StoreClient]]:
    """Return a function that connects to a prefix of the server by the client."""
    need_client(client, server[0])
    connections: list[StoreClient] = []

    def connected(target: str = f"s3://{BUCKET}/conformance", retries: int = 0) -> StoreClient:
        address = Address.of("", target, [server[1]])
        connection = StoreClient(address, Balance.ROUND_ROBIN, retries, 60, ClientName(client))
        connection.open()
        connections.append(connection)
        return connection

    yield connected
    for connection in connections:
        connection.close()


def data_of(length: int) -> memoryview:
    return memoryview(bytes(index * 7 % 251 for index in range(min(length, 251))) * (length // 251 + 1))[
        :length
    ]  # fmt: skip


@pytest.mark.parametrize("length", LENGTHS)
def test_an_object_and_its_ranges_come_back(connect, length):
    connection, data = connect(), data_of(length)
    connection.put("a/object.kv", data)
    assert connection.keys() == ["a/object.kv"]
    if length:
        into = memoryview(bytearray(length))
        connection.get("a/object.kv", into)
        assert into == data
    for start, end in {(0, 1), (length // 2, length), (length - 1, length)}:
        if 0 <= start < end <= length:
            into = memoryview(bytearray(end - start))
            connection.get_range("a/object.kv", start, into)
            assert into == data[start:end]
    connection.delete("a/object.kv")
    assert connection.keys() == []


def test_a_second_delete_is_no_error(connect):
    connection = connect()
    connection.put("object.kv", data_of(10))
    connection.delete("object.kv")
    connection.delete("object.kv")
    assert connection.requests.total("failed") == 0


def test_only_the_folder_named_is_removed(connect):
    connection = connect()
    for number in range(20):
        connection.put(f"ours/{number:02}.kv", data_of(10))
    connection.put("others/a.kv", data_of(10))
    connection.delete_all("ours/")
    assert connection.keys() == ["others/a.kv"]
    connection.delete("others/a.kv")


def test_a_missing_object_is_no_such_file(connect):
    connection = connect(retries=3)
    for read in (
        lambda into: connection.get("404/none.kv", into),
        lambda into: connection.get_range("404/none.kv", 5, into),
    ):
        with pytest.raises(OSError, match=rf"s3://{BUCKET}/conformance/404/none.kv") as error:
            read(memoryview(bytearray(100)))
        assert error.value.errno == errno.ENOENT
    assert connection.requests.total("repeats") == 0


def test_a_read_beyond_the_end_fails_at_once(connect):
    connection = connect(retries=3)
    connection.put("short.kv", data_of(100))
    for start, nbytes in ((50, 100), (200, 10)):
        with pytest.raises(OSError, match=r"short\.kv"):
            connection.get_range("short.kv", start, memoryview(bytearray(nbytes)))
    assert connection.requests.total("repeats") == 0
    connection.delete("short.kv")


@pytest.mark.parametrize(("status", "name"), [(503, "refused"), (500, "failed")])
def test_faults_are_repeated_and_counted(tmp_path, store, client, status, name):
    store.answer = lambda method, key: status if method == "GET" and key.endswith("1.kv") else None
    rows = [row("write", 0, 100), row("write", 1, 100), row("read", 0, 100), row("read", 1, 100)]
    done = object_run(
        tmp_path, rows, "--retries", 1, "--on-error", "continue", urls=(store.url,), client=client
    )
    assert done.returncode == 6, done.stderr
    run = json.loads(done.stdout)
    assert run["summary"]["errors"] == 1
    get = run["tiers"]["s3"]["requests"]["get"]
    assert (get["requests"], get[name], get["repeats"]) == (3, 2, 1)


def test_a_refused_permission_is_not_asked_again(tmp_path, store, client):
    store.answer = lambda method, key: (
        403 if method in ("PUT", "POST") and key.endswith(".kv") else None
    )
    done = object_run(tmp_path, [row("write", 0, 100)], urls=(store.url,), client=client)
    assert done.returncode == 4
    put = json.loads((tmp_path / "run" / "run.json").read_text())["tiers"]["s3"]["requests"]["put"]
    assert (put["requests"], put["failed"], put["repeats"]) == (1, 1, 0)
    assert f"s3://{BUCKET}/runs/a/kvreplay-scratch/" in done.stderr


def test_endpoints_share_the_requests_of_each_client(tmp_path, store, client):
    with stub() as other:
        other.objects, other._uploads = store.objects, store._uploads
        urls = (store.url, other.url)
        rows = [row("write", obj, 100) for obj in range(10)]
        done = object_run(tmp_path, rows, "--queue-depth", 1, urls=urls, client=client)
        assert done.returncode == 0, done.stderr
        facts = json.loads(done.stdout)["tiers"]["s3"]["client"]
    assert [(end["url"], end["requests"]) for end in facts["endpoints"]] == [
        (url, 5) for url in urls
    ]
    assert store.counts["PUT"] > 4
    assert other.counts["PUT"] > 4


def test_an_endpoint_that_is_down_is_one_line(tmp_path, client):
    url = f"http://127.0.0.1:{free_port()}"
    done = object_run(
        tmp_path, [row("write", 0, 100)], "--retries", 0, urls=(url,), client=client
    )  # fmt: skip
    assert done.returncode == 4
    assert len(lines_of(done)) == 1


def test_the_run_records_the_client_and_its_version(tmp_path, store, client):
    done = object_run(tmp_path, [row("write", 0, 100)], urls=(store.url,), client=client)
    facts = json.loads(done.stdout)["tiers"]["s3"]["client"]
    imported = pytest.importorskip(client)
    assert (facts["name"], facts["version"]) == (client, imported.__version__)


def test_the_library_takes_the_client(tmp_path, store, client):
    trace = write_trace(
        tmp_path / "t.parquet", [row("write", 0, 100)], tiers=[TierFacts("s3", 1 << 30)]
    )
    run = kvreplay.replay(
        trace,
        tiers={"s3": f"s3://{BUCKET}/library"},
        endpoints=[store.url],
        s3_client=client,
        output=tmp_path / "run",
    )
    assert run.summary.errors == 0
    assert read_run(tmp_path / "run").tiers["s3"]["client"]["name"] == client


def test_a_save_and_a_restore_go_through_each_client(tmp_path, store, client):
    """Each object of a checkpoint is longer than an I/O, and is one request of the client."""
    rows = [
        *((0, "write", 0, "save", obj, 0, 20 * MIB, 7, obj, 0) for obj in range(3)),
        *((10**6, "read", 0, "restore", obj, 0, 20 * MIB, 8, obj, 0) for obj in range(3)),
    ]
    done = object_run(tmp_path, rows, "--verify", urls=(store.url,), client=client)
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)
    assert [(c["kind"], c["operations"], c["bytes"]) for c in run["checkpoints"]["each"]] == [
        ("save", 3, 60 * MIB),
        ("restore", 3, 60 * MIB),
    ]
    assert run["verification"]["corrupt_blocks"] == 0
    requests = run["tiers"]["s3"]["requests"]
    assert (requests["put"]["requests"], requests["get"]["requests"]) == (3, 3)


def test_two_clients_of_one_bucket_are_compared(tmp_path, store):
    need_client("minio")
    trace = write_trace(
        tmp_path / "t.parquet",
        [row("write", obj, 5000) for obj in range(20)],
        tiers=[TierFacts("s3", 1 << 30)],
    )
    words = ["compare", trace, "--tier", f"s3=s3://{BUCKET}/sides", "--endpoint", store.url]
    words += ["--trials", 2, "-o", tmp_path / "pair"]
    done = run_cli("kvreplay", *words, "--against-s3-client", "minio", check=False)
    assert done.returncode == 0, done.stderr
    names = [
        read_run(tmp_path / "pair" / side / "trial-1").tiers["s3"]["client"]["name"]
        for side in "ab"
    ]
    assert names == ["s3dlio", "minio"]
    same = run_cli("kvreplay", *words, "--against-s3-client", "s3dlio", "--force", check=False)
    assert same.returncode == 2
    assert "--against-s3-client" in same.stderr


def test_what_a_client_cannot_do_is_refused(tmp_path, store):
    timed = object_run(
        tmp_path, [row("write", 0, 100)], "--request-timeout", "5s", urls=(store.url,),
        client="s3torchconnector",
    )  # fmt: skip
    assert timed.returncode == 2
    assert "--request-timeout" in timed.stderr
    unknown = object_run(tmp_path, [row("write", 0, 100)], urls=(store.url,), client="boto3")
    assert unknown.returncode == 2
    assert "--s3-client" in unknown.stderr


def test_minio_honours_the_request_timeout(tmp_path, store):
    need_client("minio")
    store.is_silent = lambda method, key: method == "GET" and key.endswith("1.kv")
    rows = [row("write", 1, 100), row("read", 1, 100)]
    options = ("--request-timeout", "2s", "--retries", 1, "--on-error", "continue")
    since = time.monotonic()
    done = object_run(tmp_path, rows, *options, urls=(store.url,), client="minio")
    assert done.returncode == 6, done.stderr
    get = json.loads(done.stdout)["tiers"]["s3"]["requests"]["get"]
    assert (get["timed_out"], get["repeats"]) == (2, 1)
    assert time.monotonic() - since >= 4
