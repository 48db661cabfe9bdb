"""The marker of a lake: the object ``lakebed.json`` at its root. Pure: bytes in, bytes out.

Format (version 1, DO NOT CHANGE)::

    {"format": 1, "min_reader": 1, "min_writer": 1, "features": []}

Invariants: this version opens a lake only if it supports `min_reader` and `min_writer` and knows every name in
`features`. This holds for lakes of newer versions too. Any other lake is `UnsupportedFormat`, never a guess.
"""

from __future__ import annotations

from typing import Final

import msgspec
from typing_extensions import Buffer

from lakebed.decoding import decode_json
from lakebed.errors import Corruption, UnsupportedFormat

MARKER_PATH: Final = "lakebed.json"
FORMAT: Final = 1
_FEATURES: Final[frozenset[str]] = frozenset()


class _Marker(msgspec.Struct):
    format: int
    min_reader: int
    min_writer: int
    features: list[str]


def encode_marker() -> bytes:
    """Return the marker of a lake that this version creates."""
    return msgspec.json.encode(_Marker(format=FORMAT, min_reader=FORMAT, min_writer=FORMAT, features=[]))


def check_marker(body: Buffer, *, url: str) -> None:
    """Check that this version may read and write the lake.

    Raises:
        Corruption: the bytes are not a marker.
        UnsupportedFormat: the lake needs a newer lakebed.
    """
    try:
        marker = decode_json(body, _Marker)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corruption(
            f"{url}/{MARKER_PATH} is not the marker of a lake ({error}): restore it from a copy, or write "
            f"{encode_marker().decode()} into it.",
            path=MARKER_PATH,
        ) from error
    unknown_features = sorted(set(marker.features) - _FEATURES)
    if max(marker.min_reader, marker.min_writer) > FORMAT or unknown_features:
        needs = f"the features {', '.join(unknown_features)}" if unknown_features else f"format {marker.min_reader}"
        raise UnsupportedFormat(
            f"The lake {url} needs {needs}, which this lakebed (format {FORMAT}) does not know: upgrade lakebed.",
            path=MARKER_PATH,
            features=unknown_features,
            format=marker.format,
        )
