"""The error for a missing object of a lake, with similar names.

Invariants: nothing is written. Cost: 1 LIST for each folder of the path, at most.
"""

from __future__ import annotations

import difflib
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from lakebed.errors import NotFound
from lakebed.objects.port import ObjectStore
from lakebed.reclaim.model import Explanation

_NEAREST_MAX: Final = 3
_INTERNAL: Final = ("_", "lakebed.json")
"""How names of what is no store begin: they are found when they are asked for, and not proposed."""
_COMPARED_MAX: Final = 1000
"""Names of a folder that are compared with the requested one: those that sort around it."""


def no_such_object(store: ObjectStore, path: str, *, explanation: Explanation | None) -> NotFound:
    """Return the error for a missing object; an `explanation` with pins names the versions that need it."""
    at = f"There is no object {path} in {store.root_url}"
    if explanation is not None and explanation.pins:
        holders = ", ".join(f"{pin.kind} {pin.name}" for pin in explanation.pins[:_NEAREST_MAX])
        more = len(explanation.pins) - _NEAREST_MAX
        needed = f"{holders}{f' and {more} more' if more > 0 else ''}"
        return NotFound(
            f"{at}, and {needed} cannot be read without it: `lakebed fsck` finds what else is missing.",
            kind="object_not_found",
            path=path,
            nearest=[],
        )
    folder, names = _deepest(store, path)
    if folder == path:
        first = next(iter(store.list(path)), None)
        hint = (
            "It is an empty folder."
            if first is None
            else f"It is a folder: name an object in it, such as {first.path}."
        )
        return NotFound(f"{at}. {hint}", kind="object_not_found", path=path, nearest=names[:_NEAREST_MAX])
    wanted = "/".join(path.split("/")[: folder.count("/") + 2 if folder else 1])
    start = max(0, bisect_left(names, wanted) - _COMPARED_MAX // 2)
    near = difflib.get_close_matches(wanted, names[start : start + _COMPARED_MAX], n=_NEAREST_MAX, cutoff=0.6)
    if near:
        hint = f" Did you mean {' or '.join(near)}?"
    else:
        names = [name for name in names if not name.startswith(_INTERNAL)]
        others = " and others" if names[_NEAREST_MAX:] else ""
        hint = f" {folder or 'It'} has {', '.join(names[:_NEAREST_MAX])}{others}."
    return NotFound(f"{at}.{hint if names else ''}", kind="object_not_found", path=path, nearest=near)


def _deepest(store: ObjectStore, path: str) -> tuple[str, Sequence[str]]:
    """Return the deepest existing folder of a path, and its sorted contents."""
    parts = path.split("/")
    for count in range(len(parts), -1, -1):
        folder = "/".join(parts[:count])
        level = store.list_with_delimiter(folder)
        names = sorted([*(meta.path for meta in level.objects), *level.folders])
        if names:
            return folder, names
    return "", ()
