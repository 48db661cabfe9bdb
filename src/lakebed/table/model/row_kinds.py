"""The system columns of files of primary-key tables, and the kinds of their rows. Pure.

DO NOT CHANGE: on disk, shared with other clients.
"""

from __future__ import annotations

from typing import Final

SEQUENCE_COLUMN: Final = "_SEQUENCE_NUMBER"
KIND_COLUMN: Final = "_VALUE_KIND"
SYSTEM_COLUMNS: Final = (SEQUENCE_COLUMN, KIND_COLUMN)

INSERT_KIND, UPDATE_BEFORE_KIND, UPDATE_AFTER_KIND, DELETE_KIND = 0, 1, 2, 3
"""Values of `KIND_COLUMN`. Odd kinds take a row back."""
ADD_KINDS: Final = (INSERT_KIND, UPDATE_AFTER_KIND)
"""The kinds of rows that exist after a merge."""
