"""Schemas that were inferred once and then pinned: ``<lake>/_lakebed/pipelines/<pipeline>/schema-<digest>.json``.

Owns: that object. Invariants: create-only; of two runs that infer at the same time, one wins and both use its schema.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from lakebed.decoding import decode_json
from lakebed.errors import AlreadyExists, Corruption, NotFound
from lakebed.pipeline.context import RunContext
from lakebed.pipeline.model import PlannedStep


@dataclass(frozen=True, slots=True)
class _Pinned:
    format: int
    source: str
    """What was read (``from`` of the step)."""
    columns: dict[str, str]
    """Column to Spark SQL type, in order."""


def pin_schema(step: PlannedStep, context: RunContext, *, infer: Callable[[], Mapping[str, str]]) -> Mapping[str, str]:
    """Return the columns of a step's files, which the first run that read them pinned.

    A step is identified by its pipeline, kind and target (not by file names, which change daily).

    Raises `Corruption`: the pinned schema is damaged; names its path.
    """
    target = step.settings["into"] or step.settings["as"]
    digest = hashlib.sha256(f"{step.kind}\0{target}".encode()).hexdigest()[:16]
    path = f"_lakebed/pipelines/{context.plan.pipeline}/schema-{digest}.json"
    store = context.lake.store
    try:
        return _decode(bytes(memoryview(store.get(path))), path)
    except NotFound:
        pinned = _Pinned(1, step.settings["from"], dict(infer()))
    try:
        store.put(path, msgspec.json.encode(pinned), create_only=True)
    except AlreadyExists:
        return _decode(bytes(memoryview(store.get(path))), path)
    return pinned.columns


def _decode(body: bytes, path: str) -> Mapping[str, str]:
    try:
        return decode_json(body, _Pinned).columns
    except msgspec.MsgspecError as error:
        raise Corruption(f"The pinned schema {path} is damaged: {error}.", path=path) from error
