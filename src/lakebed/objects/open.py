"""`open_store`: from a URL to a store. Owns: which driver serves which scheme, and how a store travels by pickle."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from lakebed.errors import InvalidRequest, NotFound
from lakebed.objects.accounting import AccountedStore
from lakebed.objects.driver import Driver
from lakebed.objects.limits import StoreLimits
from lakebed.objects.local import LocalDriver
from lakebed.objects.memory import MemoryDriver
from lakebed.objects.path import StoreUrl, parse_url
from lakebed.objects.port import ObjectStore
from lakebed.objects.vendor import VendorDriver
from lakebed.runtime import Environment

__all__ = ["open_store"]


def open_store(
    url: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, str] | None = None,
    environment: Environment | None = None,
    limits: StoreLimits | None = None,
    durable: bool = True,
    create: bool = True,
) -> AccountedStore:
    """Open a folder of objects; nothing is written, and for a bucket nothing is asked either.

    Args:
        url: a folder's path, ``file:///path``, ``memory://name``, ``s3://bucket/prefix``, ``gs://...`` or
            ``az://container/prefix``. Taken literally, without percent-decoding.
        storage_options: the vendor's settings and credentials (``aws_access_key_id``, ``aws_endpoint``, ...); what is
            not given comes from the vendor's environment variables. Never shown again.
        environment: clock, randomness and runtime; the machine's own by default.
        limits: bounds on concurrency, time and retries.
        durable: False never waits for a disk: for throw-away stores and benchmarks of everything else.
        create: False refuses a local folder that is not there. (True makes it with the first put.)

    Raises:
        InvalidRequest: the URL or an option is wrong, or the path is a file.
        NotFound: ``create=False`` and there is no such folder.
    Cost: no request.
    """
    parsed = parse_url(url)
    environment = environment or Environment()
    limits = limits or StoreLimits()
    options = {} if storage_options is None else dict(storage_options)
    driver = _driver(parsed, options, environment, limits, create)
    reopen = None if parsed.scheme == "memory" else _Reopen(str(parsed), options, limits, durable)
    return AccountedStore(driver, environment=environment, limits=limits, durable=durable, reopen=reopen)


@dataclass(frozen=True, slots=True)
class _Reopen:
    """The call that opens the same store in another process."""

    url: str
    storage_options: Mapping[str, str] = field(repr=False)
    limits: StoreLimits
    durable: bool

    def __call__(self) -> ObjectStore:
        return open_store(self.url, storage_options=self.storage_options, limits=self.limits, durable=self.durable)


def _driver(
    url: StoreUrl, options: Mapping[str, str], environment: Environment, limits: StoreLimits, create: bool
) -> Driver:
    if url.scheme in ("file", "memory") and options:
        raise InvalidRequest(f"{url} takes no storage options, and {', '.join(sorted(options))} was given")
    if url.scheme == "memory":
        return MemoryDriver(url.place, prefix=url.prefix, clock=environment.clock)
    if url.scheme != "file":
        return VendorDriver(url, options, limits)
    if os.path.exists(url.prefix):
        if not os.path.isdir(url.prefix):
            raise InvalidRequest(f"{url.prefix} is a file: a store needs a folder", kind="not_a_folder", url=str(url))
    elif not create:
        raise NotFound(f"There is no folder {url.prefix}.", kind="store_not_found", url=str(url))
    return LocalDriver(url.prefix, rng=environment.rng, folder_memory_count_max=limits.folder_memory_count_max)
