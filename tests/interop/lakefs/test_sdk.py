"""The unmodified SDK against servers in processes of their own: every flow, on every kind of server.

A local folder is what most people begin with. An object store signs URLs, so uploads and downloads go past the server.
With PostgreSQL several processes answer by turns, and what one has done the other must know at once.
"""

from __future__ import annotations

from typing import Any

import pytest

FLOWS = {
    "test_on_a_folder": (
        "repositories",
        "branches",
        "commits",
        "changes",
        "objects",
        "listings",
        "volume",
        "paths",
        "imports",
        "transactions",
        "access",
        "users",
        "actions",
    ),
    "test_on_an_object_store": ("objects", "paths", "imports"),
    "test_on_an_object_store_long": (
        *("repositories", "branches", "commits", "changes", "listings", "volume", "transactions", "access", "users"),
    ),
    "test_with_several_workers": ("workers", "branches", "changes", "transactions", "access"),
    "test_with_several_workers_long": (
        *("repositories", "commits", "objects", "listings", "volume", "paths", "imports", "users"),
    ),
}


@pytest.mark.xdist_group("lakefs-local")
def test_on_a_folder(flow: str, clients: Any, local_server: Any) -> None:
    """What the flow promises in its own docstring, of a client that knows nothing of lakebed."""
    clients.run(flow, local_server)


@pytest.mark.xdist_group("lakefs-s3")
def test_on_an_object_store(flow: str, clients: Any, signing_server: Any) -> None:
    """The same where the store signs URLs and clients use them by themselves."""
    clients.run(flow, signing_server)


@pytest.mark.xdist_group("lakefs-postgresql")
def test_with_several_workers(flow: str, clients: Any, shared_server: Any) -> None:
    """The same where two processes share their records by PostgreSQL."""
    clients.run(flow, shared_server)
