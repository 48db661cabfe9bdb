"""Query parameters and headers that several endpoints share."""

from __future__ import annotations

from typing import Final

from lakebed.http.declaration import Parameter
from lakebed.http.pages import AMOUNT_MAX

OBJECT_PATH: Final = Parameter("path", "The object's path.", required=True)
PREFIX: Final = Parameter("prefix", "Only names that begin with this.")
AFTER: Final = Parameter("after", "Only names that sort after this: `next_offset` of the previous page.")
AMOUNT: Final = Parameter(
    "amount", "The most rows of the page; below 1: the largest page.", kind="integer", bounds=(-1, AMOUNT_MAX)
)
PAGE: Final = (PREFIX, AFTER, AMOUNT)
DELIMITER: Final = Parameter("delimiter", "Fold names that contain it after the prefix into common prefixes.")
PRESIGN: Final = Parameter("presign", "Return a signed URL of the store, where the store signs URLs.", kind="boolean")
USER_METADATA: Final = Parameter("user_metadata", "Include the user's metadata (the default).", kind="boolean")
FORCE: Final = Parameter("force", "Override a safeguard, such as that of a read-only repository.", kind="boolean")
IMPORT_ID: Final = Parameter("id", "The import's id.", required=True)
RANGE: Final = Parameter("Range", "`bytes=a-b`, `bytes=a-` or `bytes=-n`.", place="header")
IF_MATCH: Final = Parameter("If-Match", "Only if the object has one of these ETags; `*`: if it exists.", place="header")
IF_NONE_MATCH: Final = Parameter("If-None-Match", "`*`: only if no object exists.", place="header")
CONDITIONS: Final = (
    IF_MATCH,
    Parameter("If-None-Match", "Only if the object has none of these ETags.", place="header"),
    Parameter("If-Modified-Since", "Only if the object was changed later.", place="header"),
    Parameter("If-Unmodified-Since", "Only if the object was not changed later.", place="header"),
)
"""Conditions of a read."""
