"""The target of an object tier: a prefix in a bucket, and the endpoints that serve it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from kvtrace.core.errors import ConfigError
from kvtrace.core.parameters import named

SCHEMES = ("s3", "az", "gs")
"""URL schemes of object stores; az and gs are taken by s3dlio alone, and are untested here."""
_TARGET = re.compile(rf"({'|'.join(SCHEMES)})://")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")
DEFAULT_REGION = "us-east-1"
_PORTS = {"http": 80, "https": 443}


def is_object_store(target: str) -> bool:
    """Return whether a target names an object store."""
    return _TARGET.match(target) is not None


@dataclass(frozen=True, slots=True)
class Address:
    """A prefix in a bucket, as each endpoint names it."""

    scheme: str
    path: str
    """Bucket and prefix, without a slash at the end."""
    endpoints: tuple[str, ...]
    """URLs, in the order in which the user named them; if empty, the environment has the URL."""

    @classmethod
    def of(cls, option: str, target: str, endpoints: Sequence[str]) -> Self:
        """Return the address that `target` and `endpoints` name.

        ConfigError, which quotes the text `option` of the tier, if they are invalid.
        """
        scheme, _, location = target.partition("://")
        bucket, _, prefix = location.partition("/")
        prefix = prefix.strip("/")
        if "@" in bucket:
            raise ConfigError(
                f"{named('tiers')}: the target has credentials; leave them out: they are read from"
                " the environment or the standard files alone"
            )
        if not prefix or (scheme == "s3" and not _BUCKET.fullmatch(bucket)):
            raise ConfigError(
                f"{option}: write {scheme}://BUCKET/PREFIX, with a bucket of 3 to 63 lower-case"
                " letters, digits, dots and hyphens, and a prefix that is the replay's own"
            )
        if any(c in "*?[]%#" or c.isspace() for c in prefix) or "//" in prefix:
            raise ConfigError(f"{option}: the prefix is letters, digits and / . _ - only")
        if endpoints and scheme != "s3":
            raise ConfigError(
                f"{option}: {named('endpoints')} is for s3:// targets; {scheme}:// takes its own"
                " from the environment"
            )
        return cls(scheme, f"{bucket}/{prefix}", tuple(_checked(url) for url in endpoints))

    @property
    def bucket(self) -> str:
        """The bucket's name."""
        return self.path.partition("/")[0]

    @property
    def prefix(self) -> str:
        """The prefix, without a slash at the end."""
        return self.path.partition("/")[2]

    def urls(self) -> tuple[str | None, ...]:
        """Return the URL of each endpoint; None for AWS."""
        return self.endpoints or (os.environ.get("AWS_ENDPOINT_URL") or None,)

    def roots(self) -> list[str]:
        """Return the URI of the prefix for each endpoint, as s3dlio takes it."""
        if not self.endpoints:
            return [f"{self.scheme}://{self.path}"]
        return [f"{self.scheme}://{urlsplit(url).netloc}/{self.path}" for url in self.endpoints]

    def tls_ports(self) -> list[int]:
        """Return the ports of endpoints that use TLS, for s3dlio's configuration."""
        urls = [urlsplit(url) for url in self.endpoints]
        return sorted({url.port for url in urls if url.scheme == "https" and url.port is not None})


def _checked(url: str) -> str:
    """Return an endpoint's URL with its port; ConfigError if it is invalid."""
    try:
        split_url = urlsplit(url)
        port = split_url.port
    except ValueError as error:
        raise ConfigError(
            f"{named('endpoints', url)}: {error}; write http://host:9000 or https://host"
        ) from None
    if split_url.username is not None or split_url.password is not None:
        raise ConfigError(
            f"{named('endpoints')}: the URL has credentials; leave them out: they are read from the"
            " environment"
        )
    if (
        split_url.scheme not in _PORTS
        or not split_url.hostname
        or split_url.path.strip("/")
        or split_url.query
        or split_url.fragment
    ):
        raise ConfigError(f"{named('endpoints', url)}: write http://host:9000 or https://host")
    host = f"[{split_url.hostname}]" if ":" in split_url.hostname else split_url.hostname
    return f"{split_url.scheme}://{host}:{port or _PORTS[split_url.scheme]}"


def region() -> str:
    """Return the region of requests, which is part of their signature."""
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or DEFAULT_REGION
