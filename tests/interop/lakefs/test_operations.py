"""The guide's list of lakeFS's operations, held against lakeFS's SDK and against what is served."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from lakebed.server.routes import ROUTES

GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "server.md"

LIST = r"""
import json, pathlib, re, lakefs_sdk
found = {}
for file in (pathlib.Path(lakefs_sdk.__file__).parent / "api").glob("*_api.py"):
    text = file.read_text()
    for method in re.finditer(r"def (\w+)_with_http_info\(", text):
        call = re.search(r"call_api\(\s*'([^']+)', '([A-Z]+)'", text[method.end():])
        found[method.group(1)] = [call.group(2), call.group(1)]
print(json.dumps(found))
"""
"""Prints method and path of every operation of the SDK, by name."""


def plain(name: str) -> str:
    """A name without what the SDK for Python changes in it: capitals and underscores."""
    return name.lower().replace("_", "")


def same_place(path: str) -> str:
    """A path without the names of its parameters."""
    return re.sub(r"\{[^}]*\}", "{}", path)


def test_the_guide_lists_every_operation_as_it_is(clients_python: Path) -> None:
    """Each operation of the SDK is in the guide once: as served when a route serves it, else as not served.

    A route for keys that gives nothing refuses, with the reason.
    """
    listed = subprocess.run([clients_python, "-c", LIST], capture_output=True, text=True, check=True).stdout
    operations = {plain(name): (method, same_place(path)) for name, (method, path) in json.loads(listed).items()}
    assert len(operations) > 100
    endpoints = [route.endpoint for route in ROUTES["/api/v1"] if route.endpoint.gives or route.endpoint.needs is None]
    routes = {(endpoint.method, same_place(endpoint.path)) for endpoint in endpoints}
    rows = re.findall(r"^\|[^|\n]+\|([^|\n]*)\|([^|\n]*)\|$", _section(GUIDE.read_text()), re.MULTILINE)
    columns = [[plain(name) for row in rows for name in re.findall(r"`(\w+)`", row[column])] for column in (0, 1)]
    for names in columns:
        assert len(set(names)) == len(names)
    served = {name for name, place in operations.items() if place in routes}
    for column, names, right in (("Served", columns[0], served), ("Not served", columns[1], set(operations) - served)):
        wrong = sorted(set(names) ^ right)
        assert not wrong, f"The table in docs/guide/server.md: the column {column} is wrong about {wrong}"


def _section(text: str) -> str:
    """The guide's section about differences."""
    return text.partition("## What differs from lakeFS\n")[2].partition("\n## ")[0]
