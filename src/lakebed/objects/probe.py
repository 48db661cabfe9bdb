"""Whether a store honours create-only puts: asked once, when something is created in it.

Owns: the probe object's name. Every commit is decided by a create-only put, so a store that ignores the condition (some
S3-compatible servers do) would let two writers overwrite each other; it is refused before anything is stored.
"""

from __future__ import annotations

from lakebed.errors import AlreadyExists, InvalidRequest
from lakebed.ids import new_uuid
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment

__all__ = ["probe_create_only"]


def probe_create_only(store: ObjectStore, *, environment: Environment | None = None) -> None:
    """Create one object twice; the second try must be refused.

    Raises:
        InvalidRequest: kind ``create_only_ignored``: the store overwrote the object.

    Cost: 2 PUT + 1 DELETE.
    """
    path = f"lakebed-probe-{new_uuid((environment or Environment()).rng)}"
    store.put(path, b"first", create_only=True, durable=False)
    try:
        store.put(path, b"second", create_only=True, durable=False)
    except AlreadyExists:
        return
    finally:
        store.delete([path])
    raise InvalidRequest(
        f"The store at {store.root_url} ignores create-only puts (it overwrote an object that was there), so two "
        "writers could destroy each other's commits. Use a store that honours If-None-Match on PUT.",
        kind="create_only_ignored",
        url=store.root_url,
    )
