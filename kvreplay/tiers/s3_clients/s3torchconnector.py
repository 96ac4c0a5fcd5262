"""Requests by Amazon's S3 connector for PyTorch, over the AWS Common Runtime.

The library's own defaults hold: a write is always a multipart upload, in parts of 8 MiB, and a
read fetches parts of 8 MiB at a time. It repeats a failed request once, which it does not report;
it cannot be told to repeat none. It has no setting for the time that a request may take.
"""

from __future__ import annotations

from collections.abc import Callable

from s3torchconnector import S3ClientConfig, S3Exception, S3ReaderConstructor, __version__
from s3torchconnector._s3client import S3Client
from s3torchconnectorclient._mountpoint_s3_client import ObjectInfo

from kvreplay.tiers.s3_clients.address import Address, region
from kvreplay.tiers.s3_clients.protocol import (
    Answer,
    Fault,
    ShortAnswerError,
    check_length,
    delete_each,
    error_of_body,
)

MAX_ATTEMPTS = 2
"""The least that the library takes; it treats 1 as its default, which is 4."""
_MISSING = ("does not exist", "was not found", "NoSuch", "response_status: 404")
_FINAL = (*_MISSING, "Forbidden", "response_status: 4", "invalid")
_TIMED_OUT = ("TIMEOUT", "THROUGHPUT_FAILURE")


class TorchConnectorClient:
    """A prefix of a store, by the S3 connector for PyTorch."""

    version: str = __version__
    errors: tuple[type[Exception], ...] = (S3Exception, ShortAnswerError)

    def __init__(self, address: Address) -> None:
        """Send requests to `address`."""
        self._bucket, self._prefix = address.bucket, address.prefix
        urls = address.urls()
        config = S3ClientConfig(
            # Amazon's own endpoints take the bucket as a part of the host name, others as a path.
            force_path_style=urls != (None,),
            max_attempts=MAX_ATTEMPTS,
        )
        self.settings: dict[str, object] = {
            "part_bytes": config.part_size,
            "max_attempts": config.max_attempts,
        }
        self._clients = [S3Client(region(), endpoint=url, s3client_config=config) for url in urls]
        self._reader = S3ReaderConstructor.range_based(buffer_size=0)

    def put(self, endpoint: int, key: str, data: memoryview) -> None:
        """Write a whole object as a multipart upload."""
        with self._clients[endpoint].put_object(self._bucket, self._name(key)) as writer:
            if len(data):
                writer.write(data)

    def get(self, endpoint: int, key: str, into: memoryview) -> None:
        """Read a whole object into `into`."""
        self.get_range(endpoint, key, 0, into)

    def get_range(self, endpoint: int, key: str, offset: int, into: memoryview) -> None:
        """Fill `into` with the object's bytes from `offset` on."""
        name = self._name(key)
        # Without the length the reader asks for it, by one more request.
        known_size = ObjectInfo(name, "", offset + len(into), 0, None, None)
        reader = self._clients[endpoint].get_object(
            self._bucket, name, object_info=known_size, reader_constructor=self._reader
        )
        reader.seek(offset)
        check_length(reader.readinto(into), into)

    def delete(self, endpoint: int, key: str) -> None:
        """Delete an object."""
        self._clients[endpoint].delete_object(self._bucket, self._name(key))

    def stat(self, endpoint: int, key: str) -> None:
        """Ask for the metadata of an object."""
        self._clients[endpoint].head_object(self._bucket, self._name(key))

    def list_names(self, endpoint: int) -> list[str]:
        """Return the names of all objects below the prefix, with their bucket."""
        return [f"{self._bucket}/{name}" for name in self._names_below(endpoint, "")]

    def delete_all(self, endpoint: int, folder: str) -> None:
        """Delete all objects below `folder`, one request each."""
        client = self._clients[endpoint]
        delete_each(
            lambda name: client.delete_object(self._bucket, name),
            self._names_below(endpoint, folder),
        )

    def fault_of(self, error: Exception, without_name: Callable[[str], str]) -> Fault:
        """Return the outcome that `error` stands for; its text is all that the library tells."""
        text = without_name(str(error))
        message = error_of_body(text) or text
        if isinstance(error, ShortAnswerError):
            return Fault(Answer.FINAL, message)
        if "throttled" in text:
            return Fault(Answer.REFUSED, message)
        if any(word in text for word in _TIMED_OUT):
            return Fault(Answer.TIMED_OUT, message)
        is_final = any(word in text for word in _FINAL)
        is_missing = any(word in text for word in _MISSING)
        return Fault(Answer.FINAL if is_final else Answer.FAILED, message, is_missing)

    def close(self) -> None:
        """Let go of the connections."""
        self._clients.clear()

    def _name(self, key: str) -> str:
        return f"{self._prefix}/{key}"

    def _names_below(self, endpoint: int, folder: str) -> list[str]:
        pages = self._clients[endpoint].list_objects(self._bucket, self._name(folder))
        return [item.key for page in pages for item in page.object_info]
