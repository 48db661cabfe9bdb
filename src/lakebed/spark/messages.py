"""Spark's messages for people: the first line with text, without codes for programs. Pure."""

from __future__ import annotations

import re
from typing import Final

_STATE: Final = re.compile(r"\s*\(?\bSQLSTATE: \w{5}\)?(?=[\s.;,]|$)")


def first_line(text: str) -> str:
    """Return the first line with text, without its SQLSTATE; the condition in brackets stays. Empty for none."""
    lines = (_STATE.sub("", line).replace(".;", ";").strip() for line in text.splitlines())
    return next(filter(None, lines), "")
