"""Object stores on loopback: two real servers, and one that counts and refuses."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KEY, SECRET = "AKIDKVREPLAYTEST", "a-secret/that+no=file-may-hold"
BUCKET = "kvt-test"
_STARTS_S = 60


@dataclass(frozen=True)
class Store:
    """A server of a store."""

    url: str
    folder: Path | None
    """Where it keeps objects as files by their keys; None where it does not."""


def free_ports(count: int) -> list[int]:
    """Return so many ports that nobody has, no two alike.

    They are below those that the kernel gives to clients, such as another part of the same server
    that starts before.
    """
    below = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found: list[int] = []
    for port in random.sample(range(10_000, below), 1_000):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            break
    return found


def free_port() -> int:
    return free_ports(1)[0]


def found_program(name: str) -> str | None:
    """Return where a program lies that pip installed beside Python, or another on the path."""
    return shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


def program(name: str) -> str:
    found = found_program(name)
    if found is None:
        pytest.skip(f"{name} is not installed (pip install -e '.[dev]')")
    return found


class StoreEndedError(Exception):
    """A server ended by itself."""


@contextmanager
def started(command: list[str], url: str, log: Path) -> Iterator[None]:
    """Run a server until the end of the block, which answers at its beginning.

    StoreEndedError: it ended before.
    """
    with (
        log.open("wb") as out,
        subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT) as server,
    ):
        try:
            until = time.monotonic() + _STARTS_S
            while not answers(url):
                assert server.poll() is None, log.read_text()[-2000:]
                assert time.monotonic() < until, log.read_text()[-2000:]
                time.sleep(0.1)
            yield
        except Exception as error:
            if server.poll() is None:
                raise
            said = log.read_text(errors="replace")[-2000:]
            raise StoreEndedError(
                f"{Path(command[0]).name} ended with {server.returncode}; its last lines:\n{said}"
            ) from error
        finally:
            # What it holds is a test's alone; asked to end, it would take its time.
            server.kill()


def answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5)  # noqa: S310 - our own server's
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


@contextmanager
def rclone(folder: Path) -> Iterator[Store]:
    """`rclone serve s3` on a directory; buckets are its subdirectories."""
    data = folder / "data"
    (data / BUCKET).mkdir(parents=True)
    url = f"http://127.0.0.1:{free_port()}"
    address = urlsplit(url).netloc
    command = [
        program("rclone"),
        "serve",
        "s3",
        "--addr",
        address,
        "--auth-key",
        f"{KEY},{SECRET}",
        str(data),
    ]
    with started([*command, "--config", "/dev/null"], url, folder / "log"):
        yield Store(url, data)


@contextmanager
def seaweedfs(folder: Path) -> Iterator[Store]:
    """SeaweedFS: master, volume, filer and S3 gateway in one process."""
    identity = {
        "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "Write", "List"],
    }
    config = folder / "s3.json"
    config.write_text(json.dumps({"identities": [{"name": "test", **identity}]}))
    s3, master, volume, filer, *internal = free_ports(8)
    url = f"http://127.0.0.1:{s3}"
    (folder / "data").mkdir()
    options = [
        *(
            f"-dir={folder / 'data'}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-s3",
            f"-s3.config={config}",
        ),
        *(
            f"-s3.port={s3}",
            f"-master.port={master}",
            f"-volume.port={volume}",
            f"-filer.port={filer}",
        ),
        *(
            f"-{part}.port.grpc={port}"
            for part, port in zip(("master", "volume", "filer", "s3"), internal, strict=True)
        ),
        *(
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-volume.max=100",
            "-master.volumeSizeLimitMB=64",
            "-master.telemetry=false",
        ),
    ]
    with started([program("weed"), "server", *options], url, folder / "log"):
        yield Store(url, None)


MULTIPART_FAULT = "rclone answers the start of a multipart upload with an element of a wrong name"
"""The reason for which s3torchconnector, which writes multipart uploads only, cannot write there."""


def need_client(client: str, server: str = "") -> None:
    """Skip a test of a client library that is not installed, or that the server does not suit."""
    reason = f"{client} is not installed (pip install -e '.[{client}]')"
    pytest.importorskip(client, reason=reason)
    if (client, server) == ("s3torchconnector", "rclone"):
        pytest.skip(MULTIPART_FAULT)


CLIENTS = ("s3dlio", "minio", "s3torchconnector")

SERVERS: dict[str, Callable[[Path], AbstractContextManager[Store]]] = {
    "rclone": rclone,
    "seaweedfs": seaweedfs,
}


_XML = "<?xml version='1.0'?>"


def without_chunks(body: bytes) -> bytes:
    """Return the data of a body in the encoding aws-chunked, without its lengths and checksums."""
    data, at = b"", 0
    while True:
        end = body.index(b"\r\n", at)
        length = int(body[at:end].split(b";")[0], 16)
        if not length:
            return data
        data += body[end + 2 : end + 2 + length]
        at = end + 2 + length + 2


def _range(header: str) -> tuple[int, int]:
    """Return the first and the last byte of a header `Range`."""
    first, last = header.removeprefix("bytes=").split("-")
    return int(first), int(last)


class Stub:
    """A store in memory that counts requests, holds them until as many are in flight, and answers
    as it is told.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self._uploads: dict[str, dict[int, bytes]] = {}
        """Parts of unfinished multipart uploads, by upload and number."""
        self.counts: Counter[str] = Counter()
        self.most_in_flight = 0
        self.answer: Callable[[str, str], int | None] = lambda _method, _key: None
        """Takes method and key, says the status of a refusal; None: the request is done."""
        self.is_silent: Callable[[str, str], bool] = lambda _method, _key: False
        """Takes method and key, says whether the request gets no answer; such are `unanswered`."""
        self.listed: list[str] = []
        """Keys that each listing has, whatever was asked."""
        self.unanswered = threading.Semaphore(0)
        self.ended = threading.Event()
        self.wanted = 0
        """Objects' requests are answered when so many are in flight, or a second later.

        0: at once.
        """
        self._in_flight = 0
        self._changed = threading.Condition()
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_PUT(self) -> None:
                stub.serve(self, "PUT")

            def do_GET(self) -> None:
                stub.serve(self, "GET")

            def do_HEAD(self) -> None:
                stub.serve(self, "HEAD")

            def do_POST(self) -> None:
                stub.serve(self, "POST")

            def do_DELETE(self) -> None:
                stub.serve(self, "DELETE")

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def serve(self, request: BaseHTTPRequestHandler, method: str) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        if "aws-chunked" in request.headers.get("Content-Encoding", ""):
            body = without_chunks(body)
        key = unquote(urlsplit(request.path).path)
        query = urlsplit(request.path).query
        is_object = key.endswith(".kv") and method in ("PUT", "GET")
        with self._changed:
            self.counts[method] += 1
            if is_object:
                self._in_flight += 1
                self.most_in_flight = max(self.most_in_flight, self._in_flight)
                self._changed.notify_all()
                self._changed.wait_for(lambda: self.most_in_flight >= self.wanted, timeout=1)
        if self.is_silent(method, key):
            self.unanswered.release()
            self.ended.wait()
            return
        try:
            status, answer = self._answer(method, key, query, body, request.headers.get("Range"))
        finally:
            if is_object:
                with self._changed:
                    self._in_flight -= 1
        request.send_response(status)
        request.send_header("Content-Length", str(len(answer)))
        request.send_header("ETag", '"0"')
        request.send_header("Content-Type", "application/xml")
        if status == 206:
            first, last = _range(request.headers["Range"])
            end, length = min(last + 1, len(self.objects[key])), len(self.objects[key])
            request.send_header("Content-Range", f"bytes {first}-{end - 1}/{length}")
        request.send_header("Last-Modified", "Sun, 22 Nov 2026 00:00:00 GMT")
        request.end_headers()
        if method != "HEAD":
            request.wfile.write(answer)

    def _answer(  # noqa: PLR0911 - an answer a kind of request
        self, method: str, key: str, query: str, body: bytes, ranged: str | None
    ) -> tuple[int, bytes]:
        refusal = self.answer(method, key)
        if refusal is not None:
            code = {503: "SlowDown", 500: "InternalError", 403: "AccessDenied"}[refusal]
            return (
                refusal,
                f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>".encode(),
            )
        if "upload" in query:
            return self._multipart(method, key, dict(parse_qsl(query, True)), body)
        if method == "PUT":
            self.objects[key] = body
            return 200, b""
        if method == "DELETE":
            self.objects.pop(key, None)
            return 204, b""
        if method == "POST":
            bucket = key.strip("/")
            for name in body.decode().split("<Key>")[1:]:
                self.objects.pop(f"/{bucket}/{name.split('</Key>')[0]}", None)
            return 200, b"<?xml version='1.0'?><DeleteResult></DeleteResult>"
        if "list-type" in query:
            return 200, self._listing(key.strip("/"), query)
        return self._object(key, ranged)

    def _object(self, key: str, ranged: str | None) -> tuple[int, bytes]:
        """Answer a GET or HEAD of an object, or of a range of it."""
        found = self.objects.get(key)
        if found is None:
            return (
                404,
                b"<?xml version='1.0'?><Error><Code>NoSuchKey</Code><Message>no</Message></Error>",
            )
        if ranged is None:
            return 200, found
        first, last = _range(ranged)
        if first >= len(found):
            return 416, b"<?xml version='1.0'?><Error><Code>InvalidRange</Code></Error>"
        return 206, found[first : last + 1]

    def _multipart(
        self, method: str, key: str, query: dict[str, str], body: bytes
    ) -> tuple[int, bytes]:
        """Answer a request of a multipart upload; the last one makes the object of its parts."""
        if "uploads" in query:
            upload = str(len(self._uploads))
            self._uploads[upload] = {}
            result = f"<UploadId>{upload}</UploadId>"
            return (
                200,
                f"{_XML}<InitiateMultipartUploadResult>{result}</InitiateMultipartUploadResult>".encode(),
            )
        parts = self._uploads[query["uploadId"]]
        if method == "PUT":
            parts[int(query["partNumber"])] = body
            return 200, b""
        if method == "POST":
            self.objects[key] = b"".join(data for _, data in sorted(parts.items()))
            result = "<ETag>0</ETag>"
            return (
                200,
                f"{_XML}<CompleteMultipartUploadResult>{result}</CompleteMultipartUploadResult>".encode(),
            )
        return 204, b""

    def _listing(self, bucket: str, query: str) -> bytes:
        prefix = unquote(
            dict(part.partition("=")[::2] for part in query.split("&")).get("prefix", "")
        )
        keys = [key.removeprefix(f"/{bucket}/") for key in sorted(self.objects)]
        found = "".join(
            f"<Contents><Key>{key}</Key><Size>1</Size><ETag>0</ETag><LastModified>2026-11-22T00:00:00.000Z</LastModified><StorageClass>STANDARD</StorageClass></Contents>"
            for key in [*self.listed, *keys] if key.startswith(prefix) or key in self.listed
        )  # fmt: skip
        return (
            "<?xml"
            f" version='1.0'?><ListBucketResult><Name>{bucket}</Name><IsTruncated>false</IsTruncated>{found}"
            "</ListBucketResult>"
        ).encode()


@contextmanager
def stub() -> Iterator[Stub]:
    """A store in memory, which counts."""
    made = Stub()
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.ended.set()
        made.server.shutdown()
        made.server.server_close()
        thread.join()
