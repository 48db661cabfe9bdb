"""Every setting of a repository server. Pure data; each says what it costs to change it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lakebed.http.options import HttpOptions
from lakebed.repo.model.options import RepositoryOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions(HttpOptions):
    """What is served, to whom, and the limits of it."""

    metadata: str | None = field(default=None, repr=False)
    """Where the records are, such as ``postgresql://...``; None: in the storage, owned by this process."""

    workers: int = 1
    """Processes that serve. More than one needs records that they can share: `metadata` on PostgreSQL."""

    allow_remote: bool = False
    """Whether to listen to other machines without a certificate (`HttpOptions.tls`): nothing is encrypted."""

    storage_options: Mapping[str, str] | None = field(default=None, repr=False)
    """Credentials and endpoints of the storage."""

    import_from: Sequence[str] = ()
    """URLs below which objects may be imported or staged: every caller who may write can read what is there. Keys that
    are limited to some repositories may import only from places given as ``repository=URL``. A folder of the storage
    itself may be imported only if it is named here; a store or the records never."""

    take_over: bool = False
    """Whether to open records that another process owns. That process is fenced."""

    durable: bool = True
    """False does not wait for the disk, on local folders."""

    repository_options: RepositoryOptions = field(default_factory=RepositoryOptions)
    """Settings of repositories, such as the hosts that webhooks may reach."""

    stage_bytes_max: int = 256 << 20
    """Largest body with objects to stage, or with paths of a verb: about a million of them. It is held in memory."""

    object_bytes_max: int = 5 << 40
    """Largest object in one upload."""

    small_object_bytes: int = 1 << 20
    """Objects up to this size are held in memory whole: one step to store them, one to read them."""

    listing_cache_bytes_max: int = 32 << 20
    """Of the rows of listings that are kept as JSON, about 100,000 of them: a page of them costs a third of another. 0
    keeps none."""

    key_recheck_s: float = 2.0
    """How long a verified access key is trusted without a read: the time a revocation by another process may take."""

    token_lifetime_s: int = 3_600
    """How long a token from ``POST /auth/login`` is valid."""

    tokens_per_key_max: int = 100
    """Live tokens of one access key; a new one beyond it ends the oldest."""

    presigned_lifetime_s: int = 900
    """How long a presigned URL is valid."""

    s3_key_file: str | None = None
    """A file with the S3 key, made when it is missing; with it the S3 gateway is served. Access keys that are made from
    then on can sign; who has the file and the records has their secrets, so keep the two apart."""

    s3_domains: Sequence[str] = ()
    """Names of this server in front of which a bucket may stand, as in ``bucket.s3.example.com``. Every request to them
    is one of S3."""

    audit_lines_max: int = 100_000
    """Lines of the audit log that are kept; the oldest are deleted."""
