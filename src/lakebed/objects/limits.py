"""Every limit of a store, as one frozen settings object. Pure data.

Each setting has its unit in its name and states the effect of a change.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from lakebed.errors import InvalidRequest

UPLOAD_PART_BYTES_MIN: Final = 5 << 20
"""S3's smallest part, except the last one."""


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Limits of requests in flight, waits and retries of one opened store."""

    request_concurrency_max: int = 32
    """Requests in flight to a remote store, from all threads. More need more sockets; fewer make threads wait."""

    inflight_bytes_max: int = 256 << 20
    """Bytes of bodies in flight to and from a remote store. A larger body is sent alone."""

    get_bytes_assumed: int = 8 << 20
    """Bytes that a GET without a range counts in `inflight_bytes_max`, because its size is unknown before the reply."""

    upload_part_bytes: int = 8 << 20
    """Size of the parts of a streamed object. A stream holds two in memory, and the large stores take 10 000 of them,
    so this allows 78 GiB; at least 5 MiB, which is S3's smallest part."""

    request_timeout_ms: int = 30_000
    """A remote request without an answer after this time has failed (and may have taken effect). A lower value detects
    dead connections sooner, and interrupts large bodies on slow networks."""

    connect_timeout_ms: int = 5_000
    """Time to open a connection. Such a failure certainly had no effect, so it is always retried."""

    retry_count_max: int = 8
    """Attempts after the first, for a request that may be repeated. 0 returns every failure to the caller."""

    retry_wait_first_ms: int = 50
    """Longest wait before the first retry. Each later wait may be twice as long. The wait itself is random, between
    zero and this limit, so that many clients do not retry at the same time."""

    retry_wait_max_ms: int = 5_000
    """Limit of every wait between two attempts."""

    coalesce_gap_bytes_max: int = 1 << 20
    """Ranges of one object with a smaller gap are read by one GET of a remote store. A larger value saves requests and
    reads more bytes. Local folders join ranges that are at most 4 KiB apart."""

    list_page_count: int = 1000
    """Names in one page of a listing. The large stores return this many for one request."""

    folder_memory_count_max: int = 100_000
    """Folders that a local store remembers as checked and durable, so that a put does not check its parent folders.
    About 200 bytes each."""

    def __post_init__(self) -> None:
        """Refuse settings that would block every request."""
        zero_is_fine = {"retry_count_max", "retry_wait_first_ms", "retry_wait_max_ms", "coalesce_gap_bytes_max"}
        for setting in fields(self):
            value, low = getattr(self, setting.name), 0 if setting.name in zero_is_fine else 1
            if setting.name == "upload_part_bytes":
                low = UPLOAD_PART_BYTES_MIN
            if not isinstance(value, int) or value < low:
                raise InvalidRequest(
                    f"the limit {setting.name} is {value!r}: it must be a whole number of at least {low}",
                    kind="invalid_limit",
                    limit=setting.name,
                )
