"""Moments of the records that requests share: never one from before a request came."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from lakebed import repo
from lakebed.http.replies import Arrivals
from lakebed.repo.branch import Branch
from lakebed.repo.repositories import Repositories, local_catalog
from lakebed.repo.transport.transport import context_of
from lakebed.server.moments import Moments


@pytest.fixture
def repositories(request: pytest.FixtureRequest) -> Iterator[Repositories]:
    """Repositories in memory, with one that has ``a`` on its branch."""
    with repo.open_all(f"memory://{request.node.name}", create=True) as opened:
        opened.create("analytics").branch("main").put("a", b"old")
        yield opened


class Loop:
    """Requests to one repository, as an event loop has them."""

    def __init__(self, repositories: Repositories) -> None:
        self.catalog = local_catalog(repositories)
        self.repository = repositories.repository("analytics")
        self.context = context_of(self.repository)
        self.arrivals = Arrivals()
        self.moments = Moments(self.catalog.key_value, self.arrivals)

    @property
    def branch(self) -> Branch:
        """Where others write."""
        return self.repository.branch("main")

    def paths(self, arrival: int) -> list[str]:
        """What the request of this number lists."""
        return [line.path for line in self.moments.view(self.context, "main", arrival=arrival).list()]


def test_requests_that_came_together_share_a_moment(repositories: Repositories) -> None:
    """The second is answered by the view of the first, which is of a time after both had come."""

    async def run() -> None:
        loop = Loop(repositories)
        first, second = loop.arrivals.add(), loop.arrivals.add()
        view = loop.moments.view(loop.context, "main", arrival=first)
        assert loop.moments.view(loop.context, "main", arrival=second) is view

    asyncio.run(run())


def test_a_later_request_sees_what_was_written_before_it_came(repositories: Repositories) -> None:
    """Whoever wrote it: the moment of those before is too old for it, also in the same turn of the loop."""

    async def run() -> None:
        loop = Loop(repositories)
        assert loop.paths(loop.arrivals.add()) == ["a"]
        loop.branch.put("b", b"new")
        assert loop.paths(loop.arrivals.add()) == ["a", "b"]
        loop.branch.delete("a")
        early = loop.arrivals.add()
        loop.branch.put("c", b"newer")
        assert loop.paths(early) == ["b", "c"]

    asyncio.run(run())


def test_a_moment_ends_with_the_turn_of_the_loop(repositories: Repositories) -> None:
    """It keeps nothing from collection, and who asks in the next turn gets another."""

    async def run() -> None:
        loop = Loop(repositories)
        arrival = loop.arrivals.add()
        view = loop.moments.view(loop.context, "main", arrival=arrival)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert loop.moments.view(loop.context, "main", arrival=arrival) is not view
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert loop.moments._newest is None

    asyncio.run(run())
