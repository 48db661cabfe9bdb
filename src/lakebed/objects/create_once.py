"""Create-only puts whose reply may be lost. They retry the same object until its path is taken, then check whose it is.

Invariants: nothing is decided while the path is empty, because an unanswered put may still take effect after a read
that found no object. All attempts have the same body, so any of them that succeeds is ours. An object whose folder
could not be synced is not put again: the system reports such a failure once, and a second sync would succeed although
the object is not durable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from typing_extensions import Buffer

from lakebed.backoff import Backoff, Pauses
from lakebed.errors import AlreadyExists, NotFound, OutcomeUnknown, Unavailable
from lakebed.objects.port import LASTING_KINDS, ObjectStore
from lakebed.runtime import Environment

R = TypeVar("R")

TRIES_MAX: Final = 12
"""Unclear answers before giving up: at most about half a minute of waiting."""

_NEW_TRIES_MAX: Final = 3

_PAUSES: Final = Pauses(0.02, 4.0, jitter=1.0)


def until_answered(request: Callable[[], R], *, what: str, environment: Environment) -> R:
    """Repeat a harmless request until it is answered, because the outcome of a change depends on it.

    Raises:
        OutcomeUnknown: `TRIES_MAX` attempts had no answer. Never `Unavailable`, which would mean that nothing happened.
    """
    backoff = Backoff(environment, _PAUSES, attempts_max=TRIES_MAX)
    for _ in backoff:
        try:
            return request()
        except Unavailable as error:
            backoff.note(error)
    raise OutcomeUnknown(f"{what}: no answer, {TRIES_MAX} times; look before you retry") from backoff.reason


def create_once(
    store: ObjectStore,
    path: str,
    body: Buffer,
    *,
    environment: Environment,
    is_ours: Callable[[Buffer], bool] | None = None,
) -> None:
    """Create an object, although replies may be lost.

    Args:
        is_ours: returns whether the object at `path` is the one that we put; by default compares the bytes. If two
            writers may put equal bytes and only one may win, pass a function that compares a write id.

    Raises:
        AlreadyExists: another object is there.
        Unavailable: of `LASTING_KINDS`; no attempt had an effect, and waiting would not help.
        OutcomeUnknown: the store gave no clear answer `TRIES_MAX` times. The object may exist, or may still appear.
            Kind ``unsynced``: it exists, and may be gone after a power loss; a second sync would not detect this.

    Cost: 1 PUT; after an unclear answer 1 PUT for each attempt, and 1 GET if the path was taken.
    """
    unclear: Unavailable | OutcomeUnknown | None = None
    for _ in Backoff(environment, _PAUSES, attempts_max=TRIES_MAX):
        try:
            store.put(path, body, create_only=True)
        except (Unavailable, OutcomeUnknown) as error:
            if error.kind == "unsynced" or (error.kind in LASTING_KINDS and unclear is None):
                raise
            unclear = error
        except AlreadyExists:
            # Even after the first attempt it may be ours: a proxy or a client may have repeated the request.
            try:
                content = store.get(path)
            except NotFound:
                continue  # deleted since: try again
            except (Unavailable, OutcomeUnknown) as error:
                unclear = error
                continue
            if is_ours(content) if is_ours is not None else memoryview(content) == memoryview(body).cast("B"):
                return
            raise
        else:
            return
    raise OutcomeUnknown(
        f"{store.root_url} did not say whether {path} was created, {TRIES_MAX} times: look before you retry "
        f"({unclear})",
        path=path,
    ) from unclear


def put_new_each(store: ObjectStore, objects: Sequence[tuple[str, Buffer]]) -> None:
    """Put small objects create-only under unique names. All are durable when this returns. Otherwise as `put_new`.

    A collection without a grace may delete some of them before they are synced. This is not an error, as it would not
    be one a moment later.

    Raises as `put_new`; `OutcomeUnknown`, kind ``unsynced``: they exist, and cannot be made durable any more.
    """
    try:
        store.put_each(objects)
    except NotFound:
        _sync_present(store, [path for path, _ in objects])
    except (AlreadyExists, OutcomeUnknown) as error:
        if error.kind == "unsynced":
            raise
        for path, body in objects:
            put_new(store, path, body, durable=False)
        # Include those that existed before: possibly only their names are durable.
        _sync_present(store, [path for path, _ in objects])


def _sync_present(store: ObjectStore, paths: Sequence[str]) -> None:
    """Sync objects, except those that were deleted in between."""
    try:
        store.sync(paths)
    except NotFound:
        for path in paths:
            with suppress(NotFound):
                store.sync([path])


def put_new(store: ObjectStore, path: str, body: Buffer, *, durable: bool = True) -> None:
    """Put an object create-only under a unique name. After a lost reply put the same bytes again.

    If two writers may race for the name, use `create_once`, which continues until it is clear whose the object is.

    Raises:
        AlreadyExists: an object with other bytes is there.
        Unavailable, OutcomeUnknown: from the store. With OutcomeUnknown the object may exist. With kind ``unsynced`` it
            exists, and may be gone after a power loss.

    Cost: 1 PUT; after a lost reply 1 PUT more, and 1 GET if the object exists.
    """
    for tries_left in reversed(range(_NEW_TRIES_MAX)):
        try:
            store.put(path, body, create_only=True, durable=durable)
        except OutcomeUnknown as error:
            if error.kind == "unsynced" or not tries_left:
                raise
        except AlreadyExists:
            if memoryview(store.get(path)).cast("B") != memoryview(body).cast("B"):
                raise
            return
        else:
            return
