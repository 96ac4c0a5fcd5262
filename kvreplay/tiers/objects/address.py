"""Where objects lie in a store: `s3://bucket/prefix`, and the endpoints that serve it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from kvtrace.core.errors import ConfigError

SCHEMES = ("s3", "az", "gs")
"""Of targets that are object stores; az and gs are s3dlio's too, and untested here."""
_TARGET = re.compile(rf"({'|'.join(SCHEMES)})://")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")
_PORTS = {"http": 80, "https": 443}


def is_object_store(target: str) -> bool:
    """Return whether a target is a place in an object store."""
    return _TARGET.match(target) is not None


@dataclass(frozen=True, slots=True)
class Address:
    """A prefix in a bucket, as each endpoint names it."""

    scheme: str
    path: str
    """Bucket and prefix, without a slash at the end."""
    endpoints: tuple[str, ...]
    """URLs, in the order in which the user named them; none: where the environment says."""

    @classmethod
    def of(cls, said: str, target: str, endpoints: Sequence[str]) -> Self:
        """Return the address that `target` and `endpoints` name; ConfigError, quoting `said`, for what is none."""
        scheme, _, rest = target.partition("://")
        bucket, _, prefix = rest.partition("/")
        prefix = prefix.strip("/")
        if "@" in bucket:
            raise ConfigError(
                "--tier: the target holds credentials; leave them out: they come from the environment or the standard "
                "files alone"
            )
        if not prefix or (scheme == "s3" and not _BUCKET.fullmatch(bucket)):
            raise ConfigError(
                f"{said}: write {scheme}://BUCKET/PREFIX, with a bucket of 3 to 63 lower-case letters, digits, dots "
                "and hyphens, and a prefix that is the replay's own"
            )
        if any(c in "*?[]%#" or c.isspace() for c in prefix) or "//" in prefix:
            raise ConfigError(f"{said}: the prefix is letters, digits and / . _ - only")
        if endpoints and scheme != "s3":
            raise ConfigError(
                f"{said}: --endpoint is for s3:// targets; {scheme}:// takes its own from the environment"
            )
        return cls(scheme, f"{bucket}/{prefix}", tuple(_checked(url) for url in endpoints))

    def roots(self) -> list[str]:
        """Return the prefix as s3dlio names it, for each endpoint: an endpoint is part of the URI."""
        if not self.endpoints:
            return [f"{self.scheme}://{self.path}"]
        return [f"{self.scheme}://{_host(url)}/{self.path}" for url in self.endpoints]

    def tls_ports(self) -> list[int]:
        """Return the ports of endpoints that speak TLS, which s3dlio must be told."""
        return sorted({_port(url) for url in self.endpoints if urlsplit(url).scheme == "https"})


def _checked(url: str) -> str:
    """Return an endpoint's URL; ConfigError for what is none."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"--endpoint {url}: {error}; write http://host:9000 or https://host") from None
    if parts.username is not None or parts.password is not None:
        raise ConfigError("--endpoint: the URL holds credentials; leave them out: they come from the environment")
    if parts.scheme not in _PORTS or not parts.hostname or parts.path.strip("/") or parts.query or parts.fragment:
        raise ConfigError(f"--endpoint {url}: write http://host:9000 or https://host")
    return f"{parts.scheme}://{_bracketed(parts.hostname)}:{port or _PORTS[parts.scheme]}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _host(url: str) -> str:
    return urlsplit(url).netloc


def _port(url: str) -> int:
    port = urlsplit(url).port
    assert port is not None, "a checked endpoint has a port"
    return port
