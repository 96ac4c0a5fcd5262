"""Credentials of S3: from the environment or the standard files, and never in any output."""

from __future__ import annotations

import os
from configparser import ConfigParser, Error
from pathlib import Path

from kvtrace.core.errors import DeviceError

_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
"""Keys of the standard files; the environment variables are the same in capitals."""
_SECRETS = (
    *map(str.upper, _KEYS),
    "AZURE_STORAGE_KEY",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_CLIENT_SECRET",
    "S3DLIO_AZURE_SAS_TOKEN",
)
_MIN_SECRET_LENGTH = 4
"""A shorter value is not a secret, and hiding it would hide words."""


def find_credentials() -> None:
    """Copy the credentials of the standard files to this process's environment.

    s3dlio reads only the environment. Variables that are set take precedence, as in every S3
    client.

    DeviceError if there are no credentials.
    """
    if "AWS_ACCESS_KEY_ID" in os.environ and "AWS_SECRET_ACCESS_KEY" in os.environ:
        return
    profile, home = os.environ.get("AWS_PROFILE", "default"), Path.home() / ".aws"
    section = profile if profile == "default" else f"profile {profile}"
    files = [
        (os.environ.get("AWS_CONFIG_FILE", home / "config"), section),
        (os.environ.get("AWS_SHARED_CREDENTIALS_FILE", home / "credentials"), profile),
    ]
    # The credentials file comes last, so it takes precedence.
    settings: dict[str, str] = {}
    for path, name in files:
        parser = ConfigParser(interpolation=None)
        try:
            parser.read(path, encoding="utf-8")
        except (Error, OSError, UnicodeError):
            # An error's text would quote the line, which may hold a secret.
            raise DeviceError(
                f"{path} is not a readable file of AWS credentials; correct it"
            ) from None
        if parser.has_section(name):
            settings |= dict(parser.items(name))
    if not {"aws_access_key_id", "aws_secret_access_key"} <= settings.keys():
        raise DeviceError(
            "no credentials for S3: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write them"
            f" to ~/.aws/credentials (profile {profile})"
        )
    for key in _KEYS:
        if key in settings:
            os.environ[key.upper()] = settings[key]
    if "region" in settings:
        os.environ.setdefault("AWS_REGION", settings["region"])


def without_secrets(text: str) -> str:
    """Return `text` on one line and without any credential of the environment."""
    for name in _SECRETS:
        value = os.environ.get(name, "")
        if len(value) >= _MIN_SECRET_LENGTH:
            text = text.replace(value, f"<{name}>")
    return " ".join(text.split())
