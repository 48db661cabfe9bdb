"""The options ``data-file.external-paths*``: the locations of a table's new data files. Pure.

Owns: `ExternalPaths`. URLs are printed as in the format's Java implementation (DO NOT CHANGE: they are in manifest
entries, and a file is identified by the text of its URL).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lakebed.errors import InvalidRequest
from lakebed.objects.path import parse_url
from lakebed.table.model.options import (
    EXTERNAL_PATHS,
    EXTERNAL_PATHS_SPECIFIC_FS,
    EXTERNAL_PATHS_STRATEGY,
    EXTERNAL_PATHS_WEIGHTS,
    TableOptions,
)

ENTROPY: Final = "entropy-inject"
_WEIGHTED: Final = "weight-robin"
_SPECIFIC: Final = "specific-fs"


@dataclass(frozen=True, slots=True)
class ExternalPaths:
    """The locations of new data files, by a table's options."""

    roots: tuple[str, ...] = ()
    """URLs such as ``file:/folder`` and ``s3://bucket/folder``, without final slash; empty: only the table's folder."""
    strategy: str = "none"
    weights: tuple[int, ...] | None = None
    """With the strategy ``weight-robin`` and several roots: how often each is chosen. None: in turn."""

    @classmethod
    def of(cls, values: Mapping[str, str]) -> ExternalPaths:
        """The locations by a table's options.

        Raises `InvalidRequest`: an invalid value, a root that is not a URL or is of an unknown kind of storage, or
        options that contradict each other.
        """
        options = TableOptions(values)
        strategy, urls = options.get(EXTERNAL_PATHS_STRATEGY), options.get(EXTERNAL_PATHS)
        weights = options.get(EXTERNAL_PATHS_WEIGHTS)
        if strategy == "none" or not urls:
            return cls()
        if strategy == _SPECIFIC:
            urls = _of_scheme(urls, options.get(EXTERNAL_PATHS_SPECIFIC_FS))
        roots = tuple(map(_root, urls))
        if strategy != _WEIGHTED or len(roots) < 2 or weights is None:
            return cls(roots, strategy)
        if len(weights) != len(roots):
            raise _invalid(
                EXTERNAL_PATHS_WEIGHTS.name, f"it has {len(weights)} weights for {len(roots)} external paths."
            )
        return cls(roots, strategy, weights)


def _of_scheme(listed: tuple[str, ...], scheme: str | None) -> tuple[str, ...]:
    if scheme is None:
        raise _invalid(EXTERNAL_PATHS_SPECIFIC_FS.name, f"the strategy {_SPECIFIC!r} needs a scheme here, such as s3.")
    urls = tuple(url for url in listed if url.partition(":")[0].lower() == scheme.lower())
    if not urls:
        name = EXTERNAL_PATHS_SPECIFIC_FS.name
        raise _invalid(EXTERNAL_PATHS.name, f"no path begins with {scheme}:, as the option {name!r} asks.")
    return urls


def _root(url: str) -> str:
    scheme, colon, rest = url.partition(":")
    if not colon or not rest.startswith("/") or re.search(r"/\.{1,2}(/|\Z)", rest):
        raise _invalid(EXTERNAL_PATHS.name, f"{url!r} is not a URL such as s3://bucket/folder or file:///folder.")
    path = re.sub("/+", "/", rest.removeprefix("//") if rest.startswith("//") else rest)
    try:
        location = parse_url(f"{scheme}://{path}")
    except InvalidRequest as error:
        raise _invalid(EXTERNAL_PATHS.name, f"{url!r}: {error.message}.") from error
    if location.scheme == "file":
        return f"file:{location.prefix}"
    return f"{scheme}://{location.place}" + (f"/{location.prefix}" if location.prefix else "")


def _invalid(option: str, sentence: str) -> InvalidRequest:
    return InvalidRequest(f"Option {option!r} is invalid: {sentence}", kind="invalid_option", option=option)
