"""Credentials of S3: from the environment or the standard files, and out of everything that is written or shown."""

from __future__ import annotations

import os
from configparser import ConfigParser, Error
from pathlib import Path

from kvtrace.core.errors import DeviceError

_KEYS = {
    "aws_access_key_id": "AWS_ACCESS_KEY_ID",
    "aws_secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "aws_session_token": "AWS_SESSION_TOKEN",
}
"""Keys of the standard files, and the variables of the same meaning."""
_SECRETS = (
    *_KEYS.values(),
    "AZURE_STORAGE_KEY",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_CLIENT_SECRET",
    "S3DLIO_AZURE_SAS_TOKEN",
)
_SHORTEST = 4
"""A shorter value is no secret, and would blot out words."""


def find_credentials() -> None:
    """Put the credentials of the standard files into this process's environment, which is all that s3dlio reads.

    Variables that are set win, as they do in every S3 client.

    Raises:
        DeviceError: there are none.

    """
    if "AWS_ACCESS_KEY_ID" in os.environ and "AWS_SECRET_ACCESS_KEY" in os.environ:
        return
    profile = os.environ.get("AWS_PROFILE", "default")
    found = _of_files(profile)
    if not {"aws_access_key_id", "aws_secret_access_key"} <= found.keys():
        raise DeviceError(
            "no credentials for S3: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write them to "
            f"~/.aws/credentials (profile {profile})"
        )
    for key, variable in _KEYS.items():
        if key in found:
            os.environ[variable] = found[key]
    if "region" in found:
        os.environ.setdefault("AWS_REGION", found["region"])


def _of_files(profile: str) -> dict[str, str]:
    """Return what the standard files say of `profile`; the credentials file wins."""
    home = Path.home() / ".aws"
    section = profile if profile == "default" else f"profile {profile}"
    files = [
        (os.environ.get("AWS_CONFIG_FILE", home / "config"), section),
        (os.environ.get("AWS_SHARED_CREDENTIALS_FILE", home / "credentials"), profile),
    ]
    found: dict[str, str] = {}
    for path, name in files:
        parser = ConfigParser(interpolation=None)
        try:
            parser.read(path, encoding="utf-8")
        except (Error, OSError, UnicodeError):
            # An error's text would quote the line, which may hold a secret.
            raise DeviceError(f"{path} cannot be read as a file of AWS credentials; mend it") from None
        if parser.has_section(name):
            found |= dict(parser.items(name))
    return found


def without_secrets(text: str) -> str:
    """Return `text` on one line and without any credential of the environment."""
    for name in _SECRETS:
        value = os.environ.get(name, "")
        if len(value) >= _SHORTEST:
            text = text.replace(value, f"<{name}>")
    return " ".join(text.split())
