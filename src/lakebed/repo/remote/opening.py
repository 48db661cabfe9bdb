"""Opening by a server's URL: all its repositories, or one.

Owns: the way from a URL to a client and a name. Does not know: what a request is.
"""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import unquote, urlsplit

from lakebed.errors import AlreadyExists, InvalidRequest, NotFound
from lakebed.repo.remote.client import Client
from lakebed.repo.remote.repositories import RemoteRepositories
from lakebed.repo.repository import Repository

__all__ = ["open_remote_repositories", "open_remote_repository"]


def open_remote_repositories(
    url: str, *, access_key: str | None = None, secret: str | None = None
) -> RemoteRepositories:
    """The repositories of a server. No request is made before one is asked for.

    Args:
        url: ``http://host:port``.
        access_key, secret: None: from ``LAKEBED_ACCESS_KEY_ID`` and ``LAKEBED_SECRET_ACCESS_KEY``.

    Raises:
        InvalidRequest: kind ``invalid_url``, ``no_credentials``.
    """
    return RemoteRepositories(Client(url, access_key=access_key, secret=secret))


def open_remote_repository(
    url: str, *, access_key: str | None = None, secret: str | None = None, create: bool = True
) -> Repository:
    """One repository of a server.

    Args:
        url: ``http://host:port/analytics``.
        access_key, secret: as `open_remote_repositories`.
        create: make it when it is not there.

    Raises:
        InvalidRequest: kind ``invalid_url``, ``no_credentials``, ``unauthorized``, ``forbidden``;
            ``not_a_repository``: the URL names none.
        NotFound: kind ``repository_not_found``.
        Unavailable: nothing answers there.
    Cost: 1 request; 3 more to make it.
    """
    endpoint, _, name = url.rstrip("/").rpartition("/")
    if urlsplit(url).path.strip("/") == "":
        raise InvalidRequest(
            f"{url} is a server's URL and names no repository: write {url.rstrip('/')}/NAME, or open all of them with "
            "lakebed.repo.open_all.",
            kind="not_a_repository",
            url=url,
        )
    home = open_remote_repositories(endpoint, access_key=access_key, secret=secret)
    name = unquote(name)
    try:
        found = home.repository(name)
    except NotFound as missing:
        if not create or missing.kind != "repository_not_found":
            raise
        with suppress(AlreadyExists):  # somebody else made it at this moment
            home.create(name)
        found = home.repository(name)
    return Repository(found.transport, close=home.close)
