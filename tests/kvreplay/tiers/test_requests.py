"""What a store answers is counted and shown, on a server that counts for itself and refuses as it
is told.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import write_trace
from object_runs import environment, lines_of, object_run, row
from phrases import shows
from stores import BUCKET, CLIENTS, KEY, SECRET, Stub, free_port, stub

from kvreplay.tiers.s3_clients import store_client
from kvreplay.tiers.s3_clients.address import Address
from kvreplay.tiers.s3_clients.credentials import find_credentials, without_secrets
from kvreplay.tiers.s3_clients.protocol import Answer
from kvtrace.core.errors import ConfigError, DeviceError
from kvtrace.core.metadata import TierFacts
from kvtrace.core.schema import OPS
from kvtrace.core.tables import open_table

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("s3dlio", reason="s3dlio is not installed (pip install -e '.[s3dlio]')")

PROCESSORS = os.cpu_count() or 1


@pytest.fixture
def store() -> Iterator[Stub]:
    with stub() as made:
        yield made


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(store_client, "FIRST_WAIT_S", 0.001)


def ops_of(folder: Path) -> list[dict[str, Any]]:
    reader = open_table(folder / "run" / "ops.parquet", OPS)
    return [op for batch in reader.batches(("outcome", *reader.extras)) for op in batch.to_pylist()]


@pytest.mark.parametrize("depth", [1, 7])
def test_as_many_requests_are_in_flight_as_the_queue_is_deep(tmp_path, store, depth):
    store.wanted = depth
    rows = [row("write", obj, 3000) for obj in range(3 * depth)]
    done = object_run(tmp_path, rows, "--queue-depth", depth, urls=(store.url,))
    assert done.returncode == 0, done.stderr
    assert store.most_in_flight == depth


def test_the_verdict_speaks_of_a_store_and_of_no_drive(tmp_path, store):
    done = object_run(
        tmp_path,
        [row("write", obj, 5000) for obj in range(40)],
        "--queue-depth",
        4,
        urls=(store.url,),
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)["summary"]
    assert summary["judgement"]["evidence"]["storage"] == "object store"
    assert "drive" not in summary["verdict"]


def test_objects_in_many_buffers_fill_the_queue_as_well(tmp_path, store):
    """Each is one request all the same, as long as the object."""
    store.wanted = 4
    rows = [row("write", obj, 40_000) for obj in range(12)] + [
        row("read", obj, 40_000) for obj in range(12)
    ]
    done = object_run(
        tmp_path, rows, "--queue-depth", 4, "--io-bytes", "4KiB", "--keep", urls=(store.url,)
    )
    assert done.returncode == 0, done.stderr
    assert store.most_in_flight == 4
    assert [len(data) for key, data in store.objects.items() if key.endswith(".kv")] == [
        40_000
    ] * 12
    assert (store.counts["PUT"], store.counts["GET"]) == (12 + 1, 12 + 1)


def test_refused_requests_are_counted_and_retried_rows_named(tmp_path, store):
    """The first PUTs of seven objects are refused.

    They go when asked again, and the rows have the retries.
    """
    twice = [0, 2, 2, 1, 2, 0, 1, 1, 1]
    left = {f"{obj:016x}.kv": times for obj, times in enumerate(twice)}

    def answer(method: str, key: str) -> int | None:
        name = key.rpartition("/")[2]
        left[name] = left.get(name, 0) - (method == "PUT")
        return 503 if method == "PUT" and left[name] >= 0 else None

    store.answer = answer
    done = object_run(tmp_path, [row("write", obj, 5000) for obj in range(20)], urls=(store.url,))
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)
    put = run["tiers"]["s3"]["requests"]["put"]
    refused = put["refused"]
    assert refused == sum(twice)
    assert (put["requests"], put["repeats"], put["failed"]) == (20 + refused, refused, 0)
    retries = [op["retries"] for op in ops_of(tmp_path)]
    assert retries == twice + [0] * 11
    assert run["tiers"]["s3"]["operations_repeated"] == 7
    assert any("refused" in note and f"{refused:,} requests" in note for note in run["notes"])
    assert store.counts["PUT"] == 20 + refused + 1


@pytest.mark.parametrize(("status", "name"), [(503, "refused"), (500, "failed")])
def test_what_is_refused_to_the_end_failed(tmp_path, store, status, name):
    store.answer = lambda method, key: status if method == "GET" and key.endswith("1.kv") else None
    rows = [row("write", 0, 100), row("write", 1, 100), row("read", 0, 100), row("read", 1, 100)]
    done = object_run(tmp_path, rows, "--retries", 1, "--on-error", "continue", urls=(store.url,))
    assert done.returncode == 6
    run = json.loads(done.stdout)
    assert run["summary"]["errors"] == 1
    assert run["tiers"]["s3"]["requests"]["get"][name] == 2
    # Waits that are told are in the latencies of what went through.
    assert run["tiers"]["s3"]["waited_ns"] == 0
    assert [(op["outcome"], op["retries"]) for op in ops_of(tmp_path)] == [("ok", 0)] * 3 + [
        ("error", 1)
    ]
    assert "(asked 2 times)" in done.stderr


def test_what_will_not_change_is_not_asked_again(tmp_path, store):
    store.answer = lambda method, key: 403 if method == "PUT" and key.endswith(".kv") else None
    done = object_run(tmp_path, [row("write", 0, 100)], urls=(store.url,))
    assert done.returncode == 4
    assert store.counts["PUT"] == 1 + 1
    assert [op["retries"] for op in ops_of(tmp_path)] == [0]


def test_a_request_that_times_out_is_counted_and_sent_again(tmp_path, store):
    store.is_silent = lambda method, key: method == "GET" and key.endswith("1.kv")
    rows = [row("write", 0, 100), row("write", 1, 100), row("read", 0, 100), row("read", 1, 100)]
    # Longer than a busy machine takes for those that are answered.
    options = ("--request-timeout", "4s", "--retries", 1, "--on-error", "continue")
    done = object_run(tmp_path, rows, *options, urls=(store.url,), env=environment())
    assert done.returncode == 6, done.stderr
    run = json.loads(done.stdout)
    get = run["tiers"]["s3"]["requests"]["get"]
    assert (get["timed_out"], get["failed"], get["repeats"]) == (2, 0, 1)
    assert [(op["outcome"], op["retries"]) for op in ops_of(tmp_path)] == [("ok", 0)] * 3 + [
        ("error", 1)
    ]
    assert f"s3://{BUCKET}/runs/a/kvreplay-scratch/" in done.stderr
    assert "after 4s" in done.stderr
    assert "--request-timeout (asked 2 times)" in done.stderr
    assert any("left 2 unanswered" in note for note in run["notes"])


@pytest.mark.full
def test_a_store_silent_from_the_first_request_is_one_line(tmp_path, store):
    store.is_silent = lambda _method, _key: True
    options = ("--request-timeout", "1s", "--retries", 0)
    done = object_run(
        tmp_path, [row("write", 0, 100)], *options, urls=(store.url,), env=environment()
    )
    assert (done.returncode, "after 1s" in done.stderr, len(lines_of(done))) == (
        4,
        True,
        1,
    )
    done = object_run(
        tmp_path, [row("write", 0, 100)], "--request-timeout", "0s", urls=(store.url,)
    )
    assert (done.returncode, shows(done.stderr, "--request-timeout 0s: … 0")) == (2, True)


@pytest.mark.first(number=1, when=1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("when", ["replay", "listing", "removal"])
def test_a_signal_ends_what_a_silent_store_keeps_waiting(tmp_path, store, when, number):
    def is_silent(method: str, key: str) -> bool:
        if when == "replay":
            return method == "PUT" and key.endswith(".kv")
        return when == "listing" or (method != "PUT" and store.counts["PUT"] > 1)

    store.is_silent = is_silent
    trace = write_trace(
        tmp_path / "t.parquet",
        [row("write", obj, 100) for obj in range(9)],
        tiers=[TierFacts("s3")],
    )
    argv = [sys.executable, "-m", "kvreplay.cli", "run", trace, "--tier", f"s3=s3://{BUCKET}/a"]
    argv += ["--endpoint", store.url, "-o", tmp_path / "run", "--quiet"]
    with subprocess.Popen(
        argv, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert store.unanswered.acquire(timeout=300)
        asked = time.monotonic()
        process.send_signal(number)
        _, said = process.communicate(timeout=300)
        # Within 2 s on a machine with a processor for each who wants one; a busy one takes its
        # turns, as many as want one now: the mean of the last minute does not know of those that
        # just came.
        wanting = int(Path("/proc/loadavg").read_text().split()[3].split("/")[0])
        assert time.monotonic() - asked < 2 * max(
            1, os.getloadavg()[0] / PROCESSORS, wanting / PROCESSORS
        )
    assert (process.returncode, "interrupt" in said, "Traceback" in said) == (
        130,
        True,
        False,
    ), said
    # What is only removed again has been replayed.
    assert ("all of it" in said) == (when == "removal")


def test_an_error_names_its_object_and_a_listings_foreign_key(tmp_path, store):
    store.answer = lambda method, key: 403 if method == "PUT" and key.endswith(".kv") else None
    done = object_run(tmp_path, [row("write", 0, 100)], urls=(store.url,))
    assert f"for 's3://{BUCKET}/runs/a/kvreplay-scratch/" in done.stderr
    assert "'it'" not in done.stderr
    store.listed = ["elsewhere/x"]
    done = object_run(tmp_path, [row("write", 0, 100)], urls=(store.url,))
    assert (done.returncode, len(lines_of(done))) == (4, 1)
    assert "s3://" in done.stderr
    assert "elsewhere/x" in done.stderr


@pytest.mark.parametrize("balance", ["round-robin", "least-connections"])
def test_endpoints_share_the_requests(tmp_path, store, balance):
    with stub() as other:
        other.objects = store.objects
        urls = (store.url, other.url)
        rows = [row("write", obj, 100) for obj in range(10)]
        done = object_run(tmp_path, rows, "--balance", balance, "--queue-depth", 1, urls=urls)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)["tiers"]["s3"]["client"]["endpoints"]
        assert [(end["url"], end["requests"]) for end in found] == [(url, 5) for url in urls]


def test_the_endpoint_that_has_less_to_do_is_asked():
    """Of two, one has a request that does not end: all others go to the other."""
    address = Address.of("", "s3://abc/d", ["http://a:1", "http://b:2"])
    found = store_client.StoreClient(address, store_client.Balance.LEAST_CONNECTIONS, 0, 60)
    found.begin()
    stuck = found._pick()
    for _ in range(5):
        at = found._pick()
        assert at == 1 - stuck
        found.in_flight[at] -= 1


def test_endpoints_of_two_stores_are_refused(tmp_path, store):
    with stub() as other:
        done = object_run(tmp_path, [row("write", 0, 100)], urls=(store.url, other.url))
        assert done.returncode == 4
        assert f"--endpoint {other.url}" in done.stderr
        assert not store.objects
        assert not other.objects


def test_a_store_that_does_not_answer_is_one_line(tmp_path):
    done = object_run(tmp_path, [row("write", 0, 100)], urls=(f"http://127.0.0.1:{free_port()}",))
    assert done.returncode == 4
    assert "not listening" in done.stderr
    assert len(lines_of(done)) == 1


def test_an_object_that_grows_is_refused(tmp_path, store):
    done = object_run(
        tmp_path, [row("write", 0, 100), row("write", 0, 100, offset=100)], urls=(store.url,)
    )
    assert done.returncode == 4
    assert "whole objects" in done.stderr


@pytest.mark.parametrize("client", CLIENTS)
def test_a_missing_client_says_what_to_install(tmp_path, store, monkeypatch, client):
    monkeypatch.setitem(sys.modules, client, None)
    monkeypatch.delitem(sys.modules, f"kvreplay.tiers.s3_clients.{client}", raising=False)
    done = object_run(tmp_path, [row("write", 0, 100)], urls=(store.url,), client=client)
    assert done.returncode == 4
    assert f"pip install -e '.[{client}]'" in done.stderr


def test_credentials_come_from_the_standard_files(tmp_path, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".env").write_text("AWS_ACCESS_KEY_ID=x\nAWS_SECRET_ACCESS_KEY=y\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DeviceError, match="S3"):
        find_credentials()
    folder = tmp_path / ".aws"
    folder.mkdir()
    (folder / "credentials").write_text(
        "[default]\naws_access_key_id = A%1\naws_secret_access_key = B\n[two]\n"
    )
    (folder / "config").write_text("[default]\nregion = eu-west-9\n")
    find_credentials()
    found = [
        os.environ[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION")
    ]
    assert found == ["A%1", "B", "eu-west-9"]
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_PROFILE", "two")
    with pytest.raises(DeviceError, match="profile two"):
        find_credentials()
    (folder / "credentials").write_text("[default]\nsecret without a key\n")
    with pytest.raises(DeviceError) as caught:
        find_credentials()
    assert "without a key" not in str(caught.value)


def test_secrets_are_taken_out_of_errors():
    text = without_secrets(f"wrong {SECRET}\nof {KEY}!")
    assert text == "wrong <AWS_SECRET_ACCESS_KEY> of <AWS_ACCESS_KEY_ID>!"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("service error: SlowDown (Please reduce your request rate.)", Answer.REFUSED),
        ("service error: unknown (no message) — HTTP 503 Service Unavailable", Answer.REFUSED),
        ("s3 throttled: status 503, code SlowDown", Answer.REFUSED),
        ("service error: unknown (no message) — HTTP 500 Internal Server Error", Answer.FAILED),
        ("dispatch failure (connection timeout): http://10.5.0.3:50300/", Answer.FAILED),
        ("service error: NoSuchKey (no message)", Answer.FINAL),
        ("service error: unknown (no message) — HTTP 403 Forbidden", Answer.FINAL),
    ],
)
def test_answers_are_told_by_their_words(text, answer):
    from kvreplay.tiers.s3_clients.s3dlio import answer_of

    assert answer_of(text) is answer


@pytest.mark.parametrize(
    ("target", "endpoints", "said"),
    [
        ("s3://bucket", [], "BUCKET/PREFIX"),
        ("s3://ab/c", [], "BUCKET/PREFIX"),
        ("s3://key:secret@bucket/c", [], "has credentials"),
        ("s3://bucket/a*", [], "letters, digits"),
        ("az://account/container/a", ["http://a"], "endpoints is for s3"),
        ("s3://bucket/a", ["http://user:word@host"], "has credentials"),
        ("s3://bucket/a", ["ftp://host"], "http://host:9000"),
        ("s3://bucket/a", ["http://host:nine"], "http://host:9000"),
        ("s3://bucket/a", ["http://host/path"], "http://host:9000"),
    ],
)
def test_addresses_that_cannot_be_are_refused(target, endpoints, said):
    with pytest.raises(ConfigError, match=said) as caught:
        Address.of(f"--tier s3={target}", target, endpoints)
    assert "word" not in str(caught.value)
    assert "secret@" not in str(caught.value)


def test_an_endpoint_is_a_part_of_the_uri():
    found = Address.of("", "s3://bucket/a/", ["http://minio", "https://host:9000", "https://[::1]"])
    assert found.roots() == [
        "s3://minio:80/bucket/a",
        "s3://host:9000/bucket/a",
        "s3://[::1]:443/bucket/a",
    ]
    assert found.tls_ports() == [443, 9000]
    assert BUCKET not in found.roots()[0]


def test_options_that_mean_nothing_are_refused(tmp_path):
    done = object_run(
        tmp_path, [row("write", 0, 100)], "--balance", "fair", urls=("http://127.0.0.1:1",)
    )
    assert "round-robin or least-connections" in done.stderr
