"""Requests by MinIO's Python client, over urllib3.

urllib3's retries are switched off, because they are not reported. The client takes the data of a
PUT as bytes and hashes them (SHA-256 over http, MD5 over https), which is part of its latency.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import closing
from importlib.metadata import version
from io import BytesIO

import certifi
import urllib3
from minio import Minio
from minio.error import MinioException, S3Error, ServerError
from urllib3.exceptions import HTTPError
from urllib3.exceptions import TimeoutError as NoAnswerError

from kvreplay.tiers.s3_clients.address import Address, region
from kvreplay.tiers.s3_clients.protocol import (
    Answer,
    Fault,
    ShortAnswerError,
    check_length,
    delete_each,
    error_of_body,
    fault_of_status,
)

MAX_CONNECTIONS = 1024
"""Maximum number of connections kept open to an endpoint: the deepest queue."""
_MIN_PART_BYTES = 5 << 20
"""The smallest part size that the client takes; a PUT of one part is one request."""
_RECEIVE_BYTES = 1 << 20
_STATUS = re.compile(r"Response code: (\d+)")


class MinioClient:
    """A prefix of a store, by MinIO's client."""

    version: str = version("minio")
    errors: tuple[type[Exception], ...] = (MinioException, HTTPError, ShortAnswerError)

    def __init__(self, address: Address, timeout_s: int) -> None:
        """Send requests to `address`; one fails if no byte comes for `timeout_s`."""
        self._bucket, self._prefix = address.bucket, address.prefix
        self.settings: dict[str, object] = {}
        self._pool = urllib3.PoolManager(
            timeout=urllib3.Timeout(connect=timeout_s, read=timeout_s),
            retries=False,
            maxsize=MAX_CONNECTIONS,
            cert_reqs="CERT_REQUIRED",
            ca_certs=os.environ.get("SSL_CERT_FILE") or certifi.where(),
        )
        self._clients = [self._connect(url) for url in address.urls()]

    def put(self, endpoint: int, key: str, data: memoryview) -> None:
        """Write a whole object by one request."""
        self._clients[endpoint].put_object(
            self._bucket,
            self._name(key),
            # Of bytes, the stream's one read returns these without another copy.
            BytesIO(bytes(data)),
            len(data),
            part_size=max(len(data), _MIN_PART_BYTES),
        )

    def get(self, endpoint: int, key: str, into: memoryview) -> None:
        """Read a whole object into `into`."""
        self._receive(endpoint, key, 0, 0, into)

    def get_range(self, endpoint: int, key: str, offset: int, into: memoryview) -> None:
        """Fill `into` with the object's bytes from `offset` on."""
        self._receive(endpoint, key, offset, len(into), into)

    def delete(self, endpoint: int, key: str) -> None:
        """Delete an object."""
        self._clients[endpoint].remove_object(self._bucket, self._name(key))

    def stat(self, endpoint: int, key: str) -> None:
        """Ask for the metadata of an object."""
        self._clients[endpoint].stat_object(self._bucket, self._name(key))

    def list_names(self, endpoint: int) -> list[str]:
        """Return the names of all objects below the prefix, with their bucket."""
        objects = self._clients[endpoint].list_objects(
            self._bucket, prefix=f"{self._prefix}/", recursive=True
        )
        return [f"{self._bucket}/{item.object_name}" for item in objects]

    def delete_all(self, endpoint: int, folder: str) -> None:
        """Delete all objects below `folder`, one request each."""
        client = self._clients[endpoint]
        objects = client.list_objects(self._bucket, prefix=self._name(folder), recursive=True)
        names = [str(item.object_name) for item in objects]
        delete_each(lambda name: client.remove_object(self._bucket, name), names)

    def fault_of(self, error: Exception, without_name: Callable[[str], str]) -> Fault:
        """Return the outcome that `error` stands for."""
        if isinstance(error, S3Error):
            return fault_of_status(error.response.status, f"{error.code}: {error.message}")
        message = without_name(str(error))
        if isinstance(error, ServerError):
            return fault_of_status(error.status_code, message)
        if status := _STATUS.search(message):
            # The client does not read an XML body of another content type than application/xml.
            reason = error_of_body(message) or "no message"
            return fault_of_status(int(status[1]), f"HTTP {status[1]}: {reason}")
        if isinstance(error, NoAnswerError):
            return Fault(Answer.TIMED_OUT, message)
        is_short = isinstance(error, ShortAnswerError)
        return Fault(Answer.FINAL if is_short else Answer.FAILED, message)

    def close(self) -> None:
        """Close the connections."""
        self._pool.clear()

    def _connect(self, url: str | None) -> Minio:
        scheme, _, host = (url or "https://s3.amazonaws.com").rstrip("/").partition("://")
        return Minio(
            host,
            access_key=os.environ["AWS_ACCESS_KEY_ID"],
            secret_key=os.environ["AWS_SECRET_ACCESS_KEY"],
            session_token=os.environ.get("AWS_SESSION_TOKEN"),
            secure=scheme == "https",
            # Without a region the client asks the store for the bucket's, by one more request.
            region=region(),
            http_client=self._pool,
        )

    def _name(self, key: str) -> str:
        return f"{self._prefix}/{key}"

    def _receive(
        self, endpoint: int, key: str, offset: int, range_bytes: int, into: memoryview
    ) -> None:
        """Read an object into `into`: `range_bytes` from `offset` on, or if that is 0, all of it."""
        response = self._clients[endpoint].get_object(
            self._bucket, self._name(key), offset=offset, length=range_bytes
        )
        with closing(response):
            received_bytes = 0
            for piece in response.stream(_RECEIVE_BYTES):
                received_bytes += len(piece)
                if received_bytes <= len(into):
                    into[received_bytes - len(piece) : received_bytes] = piece
            check_length(received_bytes, into)
            response.release_conn()
