"""Connect by the client library that `--s3-client` names."""

from __future__ import annotations

from enum import StrEnum

from kvreplay.tiers.s3_clients.address import Address
from kvreplay.tiers.s3_clients.protocol import S3Client
from kvtrace.core.errors import DeviceError, how_to_add
from kvtrace.core.parameters import named


class ClientName(StrEnum):
    """The client libraries of S3; the extras that install them have the same names."""

    S3DLIO = "s3dlio"
    MINIO = "minio"
    S3TORCHCONNECTOR = "s3torchconnector"


def make_client(name: ClientName, address: Address, timeout_s: int) -> S3Client:
    """Return the client `name`, connected to `address`.

    A request may take `timeout_s`, where the library can limit that. DeviceError, with a remedy, if
    the library is not installed.
    """
    try:
        if name is ClientName.MINIO:
            from kvreplay.tiers.s3_clients.minio import MinioClient

            return MinioClient(address, timeout_s)
        if name is ClientName.S3TORCHCONNECTOR:
            from kvreplay.tiers.s3_clients.s3torchconnector import TorchConnectorClient

            return TorchConnectorClient(address)
        from kvreplay.tiers.s3_clients.s3dlio import S3dlioClient

        return S3dlioClient(address, timeout_s)
    except ImportError as error:
        raise DeviceError(
            f"{named('s3_client', name)}: {name} is not installed ({error}); install it:"
            f" {how_to_add(name)}"
        ) from None
