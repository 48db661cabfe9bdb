"""Query parameters and headers that several endpoints have in common."""

from __future__ import annotations

from typing import Final

from lakebed.http.declaration import Parameter
from lakebed.http.pages import AMOUNT_MAX

__all__ = [
    "AFTER",
    "AMOUNT",
    "DELIMITER",
    "FORCE",
    "IF_MATCH",
    "IF_NONE_MATCH",
    "IMPORT_ID",
    "OBJECT_PATH",
    "PAGE",
    "PREFIX",
    "PRESIGN",
    "RANGE",
    "USER_METADATA",
]

OBJECT_PATH: Final = Parameter("path", "The object's path.", required=True)
PREFIX: Final = Parameter("prefix", "Only what begins so.")
AFTER: Final = Parameter("after", "Only what sorts behind this: `next_offset` of the page before.")
AMOUNT: Final = Parameter(
    "amount", "At most so many; below 1: as many as a page can have.", kind="integer", bounds=(-1, AMOUNT_MAX)
)
PAGE: Final = (PREFIX, AFTER, AMOUNT)
DELIMITER: Final = Parameter("delimiter", "Fold what holds it behind the prefix into common prefixes.")
PRESIGN: Final = Parameter("presign", "Answer with a URL of the store itself, where it signs them.", kind="boolean")
USER_METADATA: Final = Parameter("user_metadata", "Tell the user's own metadata (the default).", kind="boolean")
FORCE: Final = Parameter("force", "Also when something stands against it.", kind="boolean")
IMPORT_ID: Final = Parameter("id", "The import's id.", required=True)
RANGE: Final = Parameter("Range", "`bytes=a-b`, `bytes=a-` or `bytes=-n`.", place="header")
IF_MATCH: Final = Parameter("If-Match", "ETags: only if one of them is there now; `*`: any.", place="header")
IF_NONE_MATCH: Final = Parameter("If-None-Match", "`*`: only if nothing is there.", place="header")
