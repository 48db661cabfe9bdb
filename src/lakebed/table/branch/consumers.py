"""Consumers: the progress of streaming readers, one file each at ``consumer/consumer-<name>``.

Owns: these files. Streams of lakebed and of other clients of the format write them. Expiry keeps the snapshot that a
consumer reads next, and every newer one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from lakebed.errors import Corruption, InvalidRequest, NotFound
from lakebed.objects.port import ObjectStore
from lakebed.table.model.layout import Layout, parse_consumer
from lakebed.texts import format_value

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True, slots=True)
class Consumer:
    """A streaming reader and the snapshot that it reads next."""

    name: str
    next_snapshot_id: int
    """The snapshot it reads next."""
    write_time_ms: int
    """When its file was last written, Unix ms, by the store's clock."""


def load_consumers(store: ObjectStore, layout: Layout) -> Iterator[Consumer]:
    """The consumers of a branch, in the order of the listing.

    Raises `Corruption`: a consumer's file is unreadable, so which snapshots it needs is unknown. Cost: 1 LIST + 1 GET a
    consumer.
    """
    for meta in store.list(layout.consumer_folder):
        name = parse_consumer(meta.path)
        if name is None:
            continue
        try:
            snapshot_id = int(msgspec.json.decode(bytes(store.get(meta.path)))["nextSnapshot"])
        except NotFound:
            continue  # deleted since the listing
        except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
            raise Corruption(
                f"{meta.path} is not a consumer's progress ({error}): nothing expires while the file is there.",
                path=meta.path,
            ) from error
        yield Consumer(name, snapshot_id, meta.modified_ms)


def store_consumer(store: ObjectStore, layout: Layout, name: str, *, next_snapshot_id: int) -> None:
    """Write the progress of a consumer; its file is created or replaced.

    Raises `InvalidRequest`: the name has other characters than letters, digits and ``_.-``. Cost: 1 PUT.
    """
    if _NAME.fullmatch(name) is None:
        raise InvalidRequest(
            f"{format_value(name)} cannot be a consumer's name: use letters, digits and _.-, at most 128.",
            kind="invalid_consumer",
        )
    store.put(layout.consumer(name), msgspec.json.encode({"nextSnapshot": next_snapshot_id}))
