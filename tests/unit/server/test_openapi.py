"""The description of the interface."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from lakebed.server.app import description
from lakebed.server.routes import ROUTES


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    """The description, as it is sent."""
    document: dict[str, Any] = json.loads(json.dumps(description()))
    return document


def test_every_endpoint_is_described(described: dict[str, Any]) -> None:
    """Each route has an operation with a name of its own, a summary, and all parameters of its path."""
    operations = {
        (method.upper(), path): operation
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    }
    assert len(operations) == sum(map(len, ROUTES.values()))
    names = [operation["operationId"] for operation in operations.values()]
    assert len(set(names)) == len(names)
    for (_, path), operation in operations.items():
        assert operation["summary"].endswith((".", "?"))
        inside = {parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "path"}
        assert inside == set(re.findall(r"{(\w+)}", path))


def test_every_reference_leads_somewhere(described: dict[str, Any]) -> None:
    """No schema is named that is not there."""
    text = json.dumps(described)
    names = set(re.findall(r'"#/components/schemas/([^"]+)"', text))
    assert names
    assert names <= set(described["components"]["schemas"])


def test_no_page_loads_from_elsewhere(described: dict[str, Any]) -> None:
    """The description names no other host."""
    assert "http://" not in json.dumps(described)
    assert "https://" not in json.dumps(described)


def test_routes_that_many_call_come_first() -> None:
    """The busiest operations are tried before all others."""
    assert {item.endpoint.name for item in ROUTES["/api/v1"][:8]} >= {
        "statObject",
        "getObject",
        "headObject",
        "uploadObject",
        "getBranch",
    }
