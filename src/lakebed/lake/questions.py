"""What is asked of a whole lake: ls, history, pins, why, clean. One loop over stores of every kind.

Invariants: a store that cannot be read does not keep the others from being listed; nothing is deleted but by `clean`.
Does not know: any kind of store; how each answers is in `lakebed.lake.answers`.
"""

from __future__ import annotations

from typing import Final

from lakebed.errors import LakebedError
from lakebed.lake.answers.databases import DatabaseAnswers
from lakebed.lake.answers.port import Answers, Cleaning, StoreSummary
from lakebed.lake.answers.repositories import RepositoryAnswers
from lakebed.lake.answers.tables import TableAnswers
from lakebed.lake.marker import MARKER_PATH
from lakebed.lake.names import StoreName
from lakebed.lake.stores import Stores
from lakebed.reclaim.model import Pin, ReclaimReport, Verdict, Version

__all__ = ["clean", "history", "ls", "pins", "why"]

_ANSWERS: Final[dict[str, Answers]] = {
    "table": TableAnswers(),
    "database": DatabaseAnswers(),
    "repository": RepositoryAnswers(),
}
"""By kind, in the order of `Stores.stores`."""


def ls(lake: Stores) -> list[StoreSummary]:
    """Every store with its newest version, rows, bytes and pins, by kind, sorted by name.

    A store that cannot be read is listed with its `problem`.
    Cost: of each store, what its kind's `summary` says.
    """
    found = lake.each(lambda store: _summary(lake, store), lake.stores())
    return [summary for summary in found if summary is not None]


def _summary(lake: Stores, store: StoreName) -> StoreSummary | None:
    try:
        return _ANSWERS[store.kind].summary(lake, store.name)
    except LakebedError as problem:
        return StoreSummary(store.kind, store.name, None, None, None, 0, 0, problem=problem.message)


def history(lake: Stores, name: str) -> list[Version]:
    """Versions of a store that can be read, oldest first, pinned ones included. Raises `NotFound`."""
    store = lake.find(name)
    return _ANSWERS[store.kind].versions(lake, store.name)


def pins(lake: Stores, name: str | None = None) -> list[Pin]:
    """Everything that keeps a version alive, in one store or in all, with the bytes that each one alone holds.

    Cost: as `ls`, and the file lists of every pinned version.
    """
    stores = lake.stores() if name is None else [lake.find(name)]
    found = lake.each(lambda store: _ANSWERS[store.kind].pins(lake, store.name), stores)
    return [pin for some in found for pin in some]


def why(lake: Stores, where: str) -> Verdict:
    """Who needs an object, or when it may go.

    Args:
        where: the object's URL, or its path relative to the lake's root.

    Raises:
        InvalidRequest: the URL lies outside this lake.
    """
    path = lake.path_of(where)
    if path == MARKER_PATH:
        return Verdict(path, (), "This is the marker of the lake: it stays as long as the lake does.")
    for answers in _ANSWERS.values():
        verdict = answers.why(lake, path)
        if verdict is not None:
            return verdict
    return Verdict(path, (), "This lies in no store of the lake, so lakebed neither needs nor deletes it.")


def clean(lake: Stores, cleaning: Cleaning) -> list[ReclaimReport]:
    """Delete what nobody needs any more, by each store's own retention settings.

    Returns:
        One report a deleting step: stores by kind, in order of their names.
    """
    return [report for answers in _ANSWERS.values() for report in answers.clean(lake, cleaning)]
