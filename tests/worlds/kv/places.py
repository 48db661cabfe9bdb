"""Locations of databases in memory, each with randomness of its own."""

from __future__ import annotations

import itertools
import random
import uuid

from lakebed.kv.database_location import DatabaseLocation
from lakebed.objects import ObjectStore, open_store
from lakebed.runtime import Environment
from lakebed.testing.clock import ManualClock

_SEEDS = itertools.count()


def place_on(store: ObjectStore, clock: ManualClock | None = None) -> DatabaseLocation:
    """A place with a manual clock."""
    environment = Environment(clock=clock or ManualClock(), rng=random.Random(next(_SEEDS)))
    return DatabaseLocation(store, environment, open_store)


def fresh(clock: ManualClock | None = None) -> DatabaseLocation:
    """An empty place."""
    return place_on(open_store(f"memory://{uuid.uuid4().hex}/db"), clock)
