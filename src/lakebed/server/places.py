"""How clients name places of a store: URLs, and lakeFS's ``local://``; and all names of one place.

Owns: `engine_url`, `format_namespace` and `place_names`. Invariant: two texts that lead to one place have the same
names, so a policy about a place applies to every spelling. Links of the server's disk are not followed here: an
operator's rules apply to the real location of a place (`lakebed.repo.outside.import_policy`), a policy applies to its
name. Pure.
"""

from __future__ import annotations

from dataclasses import replace

from lakebed.errors import InvalidRequest
from lakebed.objects.path import parse_url
from lakebed.server.errors import LOCAL_SCHEME
from lakebed.server.permissions import NAMESPACES, Permission

_FILE = "file:/"


def engine_url(url: str, *, root_url: str) -> str:
    """Return an object's URL in the engine's form.

    ``local:///path`` is a path of the server's own disk, ``local://folder`` a folder of the storage at `root_url`, as
    in the namespaces of repositories.
    """
    if not url.startswith(LOCAL_SCHEME):
        return url
    path = url.removeprefix(LOCAL_SCHEME)
    return f"file://{path}" if path.startswith("/") else f"{root_url}/{path}"


def format_namespace(namespace: str, *, root_url: str) -> str:
    """Format a namespace for clients: a bucket's folder as its URL, a folder on the server's disk as ``local://``."""
    if "://" in namespace:
        return namespace
    return LOCAL_SCHEME + namespace if root_url.startswith(("file:", "memory:")) else f"{root_url}/{namespace}"


def place_names(text: str, *, root_url: str) -> tuple[str, ...]:
    """Return the names of the place that a text leads to: its URL first, without ``..``, and ``local://`` for it.

    Args:
        text: a URL, a path of the server's disk, or a folder of the storage at `root_url`; a final slash stays.

    Raises `InvalidRequest`: the text leads to no place.
    """
    end = "/" if text.endswith("/") else ""
    is_relative = "://" not in text and not text.startswith(("/", _FILE))
    given_url = f"{root_url}/{text}" if is_relative else engine_url(text, root_url=root_url)
    url = str(parse_url(given_url))
    names = [url]
    if url.startswith("file://"):
        names.append(LOCAL_SCHEME + url.removeprefix("file://"))
    if url.startswith(f"{root_url}/"):
        relative = url.removeprefix(f"{root_url}/")
        names += [LOCAL_SCHEME + relative, relative]
    return tuple(name if name.endswith("/") else name + end for name in names)


def name_place(permission: Permission, *, root_url: str) -> Permission:
    """Add all names of the place to a permission for a place; return any other permission unchanged.

    A spelling that is not one of the names, such as one with ``..``, is replaced by the place's URL. A text that leads
    to no place is left to the operation, which refuses it.
    """
    text = permission.resource.removeprefix(NAMESPACES)
    if not text or text == permission.resource:
        return permission
    try:
        names = place_names(text, root_url=root_url)
    except InvalidRequest:
        return permission
    shown_name = text if text in names else names[0]
    return replace(
        permission,
        resource=NAMESPACES + shown_name,
        aliases=tuple(NAMESPACES + name for name in names if name != shown_name),
    )
