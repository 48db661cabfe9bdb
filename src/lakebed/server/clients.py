"""Lines that a user pastes so that each family of clients reaches a server: addresses, and the access key's place."""

from __future__ import annotations

from collections.abc import Iterator


def name_of_folder(url: str) -> str:
    """Return the last part of a lake's URL, which is the lake's name for clients of catalogs."""
    return url.rstrip("/").rpartition("/")[2] or "lake"


def describe_clients(
    endpoint: str, *, warehouse: str, speaks_s3: bool, access_key: str, secret: str
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the name of each family, and at most five lines to paste into a shell or a Python prompt.

    Args:
        warehouse: as `name_of_folder`.
        speaks_s3: whether the server has the key of the S3 gateway.
    """
    yield (
        "lakebed, in Python",
        (
            "from lakebed import repo",
            f'access = repo.Access(access_key="{access_key}", secret="{secret}")',
            f'analytics = repo.open("{endpoint}/analytics", create=True, access=access)',
        ),
    )
    yield (
        "lakeFS: lakectl and the SDKs, in a shell",
        (
            f"export LAKECTL_SERVER_ENDPOINT_URL={endpoint}",
            f"export LAKECTL_CREDENTIALS_ACCESS_KEY_ID={access_key}",
            f"export LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY={secret}",
        ),
    )
    if speaks_s3:
        yield (
            "S3: boto3, s3fs and aws, in a shell",
            (
                f"export AWS_ENDPOINT_URL={endpoint}",
                f"export AWS_ACCESS_KEY_ID={access_key}",
                f"export AWS_SECRET_ACCESS_KEY={secret}",
                "export AWS_DEFAULT_REGION=us-east-1",
            ),
        )
    yield (
        "Paimon, in Python",
        (
            "from pypaimon import CatalogFactory",
            f'options = {{"metastore": "rest", "uri": "{endpoint}/paimon", "warehouse": "{warehouse}"}}',
            f'options |= {{"token.provider": "bear", "token": "{access_key}.{secret}"}}',
            "catalog = CatalogFactory.create(options)",
        ),
    )
    yield (
        "Iceberg, for reading, in Python",
        (
            "from pyiceberg.catalog import load_catalog",
            f'options = {{"type": "rest", "uri": "{endpoint}/iceberg", "warehouse": "{warehouse}"}}',
            f'options |= {{"token": "{access_key}.{secret}"}}',
            f'catalog = load_catalog("{warehouse}", **options)',
        ),
    )
