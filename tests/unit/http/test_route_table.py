"""Which route a path has, compared with the routes of a library that tries them in turn."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

import pytest
from starlette.routing import Match, Route

from lakebed.errors import InvalidRequest, NotFound
from lakebed.http.application import RouteTable
from lakebed.server.iceberg.routes import ROUTES as ICEBERG
from lakebed.server.paimon.routes import ROUTES as PAIMON
from lakebed.server.routes import ROUTES

WORDS = ["main", "objects", "stat", "refs", "branches", "commits", "a%b", "\u00e9", "x\n", "diff", "merge", "tables"]


def templates(routes: Iterable[Any]) -> dict[str, set[str]]:
    """Methods by template."""
    methods: dict[str, set[str]] = {}
    for route in routes:
        methods.setdefault(route.endpoint.path, set()).add(route.endpoint.method)
    return methods


@pytest.mark.parametrize("routes", [*ROUTES.values(), PAIMON, ICEBERG], ids=[*ROUTES, "paimon", "iceberg"])
def test_the_table_finds_what_trying_in_turn_finds(routes: Any) -> None:
    """Of every template with random values, and of paths near it: the same place, parameters and refusals."""
    by_template = templates(routes)
    places = {template: (methods, type("Place", (), {"at": template})()) for template, methods in by_template.items()}
    table = RouteTable(places)
    in_turn = [
        (template, Route(template, type("App", (), {}), methods=[*methods]))
        for template, methods in by_template.items()
    ]
    rng = random.Random(7)
    for template in by_template:
        for method in ("GET", "POST", "HEAD", "DELETE", "PUT"):
            parts = [rng.choice(WORDS) if part.startswith("{") else part for part in template.split("/")]
            if rng.random() < 0.4:
                parts.insert(rng.randrange(1, len(parts) + 1), rng.choice(WORDS))
            path = "/".join(parts)
            scope = {"type": "http", "path": path, "method": method}
            matches = [(name, *route.matches(scope)) for name, route in in_turn]
            full = next(((name, found["path_params"]) for name, match, found in matches if match is Match.FULL), None)
            if full is not None:
                place, parameters = table.find(path, method)
                assert (place.answer.at, parameters) == full
            elif any(match is Match.PARTIAL for _, match, _ in matches):
                with pytest.raises(InvalidRequest, match="is not supported: use"):
                    table.find(path, method)
            else:
                with pytest.raises(NotFound, match="There is no route"):
                    table.find(path, method)


def test_a_slash_is_in_no_name_that_has_none() -> None:
    """The name of a table has none, so the path is another one."""
    table = RouteTable(
        {template: ({"GET"}, type("Place", (), {"at": template})()) for template in ("/t/{table}", "/{rest:path}")}
    )
    place, values = table.find("/t/a/b", "GET", b"/t/a%2Fb")
    assert (place.answer.at, values) == ("/{rest:path}", {"rest": "t/a/b"})


@pytest.mark.parametrize(
    ("method", "raw", "place", "parameters"),
    [
        ("GET", "refs/main/diff/objects", "refs/{left:path}/diff/{right:path}", {"left": "main", "right": "objects"}),
        ("GET", "refs/main/diff/commits", "refs/{left:path}/diff/{right:path}", {"left": "main", "right": "commits"}),
        (
            "GET",
            "refs/main/merge/commits",
            "refs/{source:path}/merge/{branch}",
            {"source": "main", "branch": "commits"},
        ),
        ("GET", "refs/a%2Fdiff/objects", "refs/{ref:path}/objects", {"ref": "a/diff"}),
        (
            "GET",
            "refs/a%2Fb/diff/x%2Fobjects",
            "refs/{left:path}/diff/{right:path}",
            {"left": "a/b", "right": "x/objects"},
        ),
        ("GET", "refs/a/b/objects", "refs/{ref:path}/objects", {"ref": "a/b"}),
        ("GET", "refs/a%2Fb%25/objects/stat", "refs/{ref:path}/objects/stat", {"ref": "a/b%"}),
        ("HEAD", "refs/a%2Fb/objects", "refs/{ref:path}/objects", {"ref": "a/b"}),
    ],
)
def test_a_slash_in_a_name_is_told_from_one_between_names(
    method: str, raw: str, place: str, parameters: dict[str, str]
) -> None:
    """A tag may be called ``objects``, and one ``a/diff``: a client writes the slash of a name as ``%2F``."""
    by_template = templates(ROUTES["/api/v1"])
    table = RouteTable(
        {template: (methods, type("Place", (), {"at": template})()) for template, methods in by_template.items()}
    )
    start = "/repositories/analytics/"
    found, values = table.find(start + unquote(raw), method, (start + raw).encode())
    assert (found.answer.at, values) == (
        f"/repositories/{{repository}}/{place}",
        {"repository": "analytics", **parameters},
    )
