"""The unmodified lakefs-spec, and the data frames that people reach through it."""

from __future__ import annotations

from typing import Any

import pytest

FLOWS = {
    "test_on_a_folder": ("filesystem", "frames"),
    "test_on_an_object_store": ("frames",),
    "test_on_an_object_store_long": ("filesystem",),
}


@pytest.mark.xdist_group("lakefs-local")
def test_on_a_folder(flow: str, clients: Any, local_server: Any) -> None:
    """What the flow promises in its own docstring, of fsspec and of those who build on it."""
    clients.run(flow, local_server)


@pytest.mark.xdist_group("lakefs-s3")
def test_on_an_object_store(flow: str, clients: Any, signing_server: Any) -> None:
    """The same where reads are redirected to URLs that the store has signed."""
    clients.run(flow, signing_server)
