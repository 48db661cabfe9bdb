"""Which route a path has, compared with the routes of a library that tries them in turn."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

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
