"""Paths inside a store and the URLs of stores: checked, joined and parsed here. Pure.

Invariants:
- A path is relative, ``/``-separated, without empty, ``.`` or ``..`` segments, without NUL, and encodable as UTF-8.
- A URL is taken literally, without percent-decoding: ``open_store(store.root_url)`` opens the same store whatever its
  name, and other engines (Hadoop's path class) read URLs the same way.
- A text that begins with a scheme, such as ``s3:bucket``, is a URL or is refused. It never denotes a local folder of
  that name, which is written ``./s3:bucket``. Every location that a user gives is parsed by `parse_url` or
  `local_path`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final, Literal, cast

from lakebed.errors import InvalidRequest

Scheme = Literal["file", "memory", "s3", "gs", "az"]

_WRONG_SEGMENTS: Final = frozenset(("", ".", ".."))
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")
URL_PATTERN: Final = "^[A-Za-z][A-Za-z0-9+.-]*:/"
"""The pattern of `is_url`, for Arrow's functions."""
_URL: Final = re.compile(URL_PATTERN)
_SCHEMES: Final = {
    "file": "file",
    "memory": "memory",
    "s3": "s3",
    "s3a": "s3",
    "gs": "gs",
    "gcs": "gs",
    "az": "az",
    "azure": "az",
}
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_SHOWN_SCHEMES: Final = "a folder's path, file://, memory://, s3://, gs:// or az://"


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """The parts of a store's URL.

    `place` is the bucket, container or memory name, and ``""`` for folders; `prefix` is the path inside it without
    slashes at its ends, and for folders the absolute path.
    """

    scheme: Scheme
    place: str
    prefix: str

    def __str__(self) -> str:
        """Return the URL without a final slash."""
        if self.scheme == "file":
            return "file://" + self.prefix
        return f"{self.scheme}://{self.place}" + (f"/{self.prefix}" if self.prefix else "")

    def join(self, path: str) -> str:
        """Return the URL of a folder or object inside; `path` is not empty."""
        return f"{str(self).removesuffix('/')}/{path}"


def check_path(path: str) -> str:
    """Return `path` if it may name an object.

    Raises:
        InvalidRequest: it is empty, absolute, or has empty, ``.`` or ``..`` segments, or is not UTF-8.
    """
    if not is_path(path):
        raise InvalidRequest(
            f"{path!r} is not a path inside a store: use names separated by single slashes, without '.' and '..', "
            "and without a slash at either end",
            kind="invalid_path",
            path=path,
        )
    return path


def is_path(path: str) -> bool:
    """Return whether `path` may name an object; see `check_path`. Every call to a store calls this once or twice."""
    if "\0" in path or not _WRONG_SEGMENTS.isdisjoint(path.split("/")):
        return False
    return path.isascii() or _SURROGATE.search(path) is None


def is_url(path: str) -> bool:
    """Return whether a path is the URL of an object outside the store that names it."""
    return _URL.match(path) is not None


def check_folder(prefix: str) -> str:
    """Return `prefix` if it may name a folder: a path, or ``""`` for the root. One final slash is removed."""
    folder = prefix.removesuffix("/") if prefix != "/" else prefix
    return check_path(folder) if folder else folder


def join_path(folder: str, path: str) -> str:
    """Join to ``folder/path``; either may be empty."""
    return f"{folder}/{path}" if folder and path else folder or path


def parse_url(url: str | os.PathLike[str]) -> StoreUrl:
    """Split a store's URL, or a folder's plain path, into its parts.

    ``file:/folder``, as other clients write it, is ``file:///folder``.

    Raises:
        InvalidRequest: the text is empty, its scheme is unknown, what follows the scheme is missing, or the URL
            carries credentials.
    """
    if not isinstance(url, (str, os.PathLike)):
        raise InvalidRequest(
            f"A URL or a path is a text, and {type(url).__name__} was given.", kind="wrong_type", argument="url"
        )
    text = os.fspath(url)
    if text.startswith("file:/") and not text.startswith("file://"):
        text = f"file://{text.removeprefix('file:')}"
    scheme, separator, rest = text.partition("://")
    if not separator:
        _check_plain(text, instead=_SHOWN_SCHEMES)
        return _parse_folder(text)
    if scheme not in _SCHEMES:
        raise InvalidRequest(
            f"{scheme}:// is not a kind of store that lakebed knows: use {_SHOWN_SCHEMES}", kind="invalid_url"
        )
    if scheme == "file":
        if not rest.startswith("/"):
            complaint = "names a host" if rest else "lacks a folder"
            raise InvalidRequest(
                f"{text!r} {complaint}: write file:///absolute/path, with three slashes", kind="invalid_url"
            )
        return _parse_folder(rest)
    place, _, prefix = rest.partition("/")
    if "@" in place:
        raise InvalidRequest(
            f"a {scheme}:// URL must not carry credentials: give them as storage_options or in the environment",
            kind="invalid_url",
        )
    if not place:
        complaint = "name" if scheme == "memory" else "bucket"
        raise InvalidRequest(f"{text!r} lacks a {complaint}: write {scheme}://{complaint}/folder.", kind="invalid_url")
    return StoreUrl(cast(Scheme, _SCHEMES[scheme]), place, check_folder(prefix))


def local_path(path: str | os.PathLike[str]) -> str:
    """Return the path of a local file or folder, which a user gave as a path or as ``file:///path``.

    Raises:
        InvalidRequest: the text is empty, or a URL of another scheme: the user did not mean a local file of that name.
    """
    text = os.fspath(path)
    if text.startswith("file:/"):
        return parse_url(text).prefix
    _check_plain(text, instead="a path of this machine")
    return text


def _check_plain(text: str, *, instead: str) -> None:
    if not text or "\x00" in text:
        raise InvalidRequest(f"a location is empty or has a NUL in it: use {instead}", kind="invalid_url")
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"a location has half a character in it, as no file's name has: use {instead}", kind="invalid_url"
        ) from error
    scheme = _SCHEME.match(text)
    start = text.partition("://")[0] + "://" if "://" in text else scheme and scheme[0]
    if start:  # not the whole text: it may have a password
        raise InvalidRequest(
            f"{start} cannot be used here: use {instead}; for a name that begins so, write ./{start}...",
            kind="invalid_url",
        )


def _parse_folder(text: str) -> StoreUrl:
    path = os.path.abspath(os.path.expanduser(text))
    return StoreUrl("file", "", path.removeprefix("/") if path.startswith("//") else path)  # two slashes are one here
