"""Traces in S3: a dataset is read in place, a file is fetched into a temporary folder first.

A dataset has its manifest and its objects and requests tables fetched, so that it looks like a
folder on a local file system, except for its parts: these are read from S3, as far as they are
needed. Credentials, region and endpoint are those of the environment (AWS_ACCESS_KEY_ID,
AWS_PROFILE, AWS_REGION, AWS_ENDPOINT_URL and so on), as the AWS SDK reads them.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from kvtrace.core import pa, pa_fs
from kvtrace.core.errors import ConfigError, DeviceError, TraceError, first_line
from kvtrace.core.files import MANIFEST
from kvtrace.core.table_names import SUFFIXES, objects_path, requests_path
from kvtrace.core.temporary import TemporaryFolder
from kvtrace.core.units import format_bytes

_URL = re.compile(r"s3:/+(?P<bucket_path>[^/]+/.+?)/*")
_COPY_BYTES = 8 << 20
_ATTEMPTS = 4
_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class RemoteFolder:
    """A folder in S3."""

    file_system: pa_fs.FileSystem
    bucket_path: str
    """The bucket and the prefix."""

    def path(self, name: str) -> Path:
        """Return the path of a file of the folder, for messages."""
        return Path("s3:/") / self.bucket_path / name

    def open(self, name: str) -> pa.NativeFile:
        """Open a file of the folder; TraceError if that is not possible."""
        with convert_s3_errors(self.path(name)):
            return self.file_system.open_input_file(f"{self.bucket_path}/{name}")


_urls: dict[Path, str] = {}
"""The URL of each trace in S3 that this process reads, by its local path."""
_folders: dict[Path, RemoteFolder] = {}
"""The folder in S3 of each of them that is a dataset, by its local path."""


def is_remote(path: Path | str) -> bool:
    """Return whether `path` names a trace in S3: s3://BUCKET/KEY, or s3:/BUCKET/KEY as a `Path`."""
    return str(path).startswith("s3:/")


def remote_folder(path: Path) -> RemoteFolder | None:
    """Return where the parts of the dataset at the local `path` are; None if they are there."""
    return _folders.get(path)


def given_path(path: Path) -> str:
    """Return the path of a trace as the user gave it: the URL of one in S3."""
    return _urls.get(path, str(path))


def local_path(path: Path | str, progress: Callable[[float], None] = lambda _bytes: None) -> Path:
    """Return the path under which to read the trace at `path`, which may be in S3.

    A trace in S3 is fetched, a dataset without its parts. `progress` takes the bytes that were
    fetched so far.

    TraceError if there is no such trace, or it cannot be read. DeviceError if it does not fit into
    the temporary folder.
    """
    if not is_remote(path):
        return Path(path)
    match = _URL.fullmatch(str(path))
    if match is None:
        raise ConfigError(f"{path}: write s3://BUCKET/KEY")
    local = _fetch(match["bucket_path"], progress)
    _urls[local] = f"s3://{match['bucket_path']}"
    return local


def _fetch(bucket_path: str, progress: Callable[[float], None]) -> Path:
    """Fetch the trace at `bucket_path` in S3 as `local_path` does; return its local path."""
    parent, _, name = bucket_path.rpartition("/")
    is_file = name.endswith(SUFFIXES)
    trace = Path(name)
    if is_file:
        main_name, companion_names = name, (objects_path(trace).name, requests_path(trace).name)
        source = RemoteFolder(_connect(bucket_path), parent)
    else:
        main_name, companion_names = MANIFEST, ("objects.parquet", "requests.parquet")
        source = RemoteFolder(_connect(bucket_path), bucket_path)
    names = [main_name, *companion_names]
    with convert_s3_errors(source.path(main_name)):
        file_infos = source.file_system.get_file_info(
            [f"{source.bucket_path}/{name}" for name in names]
        )
    sizes = {
        name: info.size
        for name, info in zip(names, file_infos, strict=True)
        if info.type == pa_fs.FileType.File
    }
    if main_name not in sizes:
        advice = "" if is_file else "; name the folder of a trace dataset, or a file *.parquet"
        raise TraceError(f"no such file{advice}", path=source.path(main_name))
    scratch = TemporaryFolder("kvtrace-")
    # Lazy frames and SQL views read the files until the process ends.
    scratch.keep_until_exit()
    folder = scratch.path if is_file else scratch.path / name
    free_bytes = shutil.disk_usage(scratch.path).free
    if (needed_bytes := sum(sizes.values())) > free_bytes:
        raise DeviceError(
            f"s3://{source.bucket_path}/{main_name}: takes {format_bytes(needed_bytes)}, but only"
            f" {format_bytes(free_bytes)} are free in {scratch.path.parent}; set TMPDIR to a larger"
            " disk"
        )
    folder.mkdir(exist_ok=True)
    fetched_bytes = 0
    for file in sizes:
        for size in _copy(source, file, folder / file):
            fetched_bytes += size
            progress(float(fetched_bytes))
    path = folder / name if is_file else folder
    if not is_file:
        _folders[path] = source
    return path


def _copy(source: RemoteFolder, name: str, target: Path) -> Iterator[int]:
    """Copy a file from S3; yield the bytes of each piece."""
    with source.open(name) as file, target.open("wb") as out:
        while data := _read_piece(file, source.path(name)):
            try:
                out.write(data)
            except OSError as error:
                raise DeviceError(
                    f"{target}: {error.strerror}; set TMPDIR to a larger disk"
                ) from None
            yield len(data)


def _read_piece(file: pa.NativeFile, path: Path) -> bytes:
    with convert_s3_errors(path):
        data: bytes = file.read(_COPY_BYTES)
    return data


def _connect(bucket_path: str) -> pa_fs.FileSystem:
    """Return the file system of the bucket of `bucket_path`."""
    bucket = bucket_path.partition("/")[0]
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    with convert_s3_errors(Path("s3:/") / bucket_path):
        if region is None:
            region = "us-east-1" if endpoint else pa_fs.resolve_s3_region(bucket)
        address = urlsplit(endpoint) if endpoint else None
        return pa_fs.S3FileSystem(
            region=region,
            endpoint_override=address.netloc if address else None,
            scheme=address.scheme if address else "https",
            connect_timeout=_TIMEOUT_S,
            request_timeout=_TIMEOUT_S,
            retry_strategy=pa_fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
        )


@contextmanager
def convert_s3_errors(path: Path) -> Iterator[None]:
    """Convert errors of Arrow's S3 client to a TraceError of `path`."""
    try:
        yield
    except FileNotFoundError:
        raise TraceError("no such file", path=path) from None
    except MemoryError:
        # pyarrow's MemoryError is an ArrowException too.
        raise
    except (OSError, pa.ArrowException) as error:
        message = (
            f"cannot be read from S3 ({first_line(error)}); check credentials, region and endpoint"
        )
        raise TraceError(message, path=path) from None
