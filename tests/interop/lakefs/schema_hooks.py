"""What schemathesis should know of the server under test: names that exist, so that requests come past the first look.

Loaded by schemathesis in the clients' environment. Of the generated names most are replaced by existing ones, by a rule
that depends on nothing but the generated name; the others stay, and are mistakes that must be refused well.
"""

import schemathesis

KNOWN = {
    "repository": ["analytics"],
    "branch": ["main", "dev"],
    "tag": ["v1"],
    "ref": ["main", "dev", "v1", "main~1", "main@"],
    "commit": ["main", "v1"],
    "left": ["main", "v1"],
    "right": ["dev", "main"],
    "source": ["dev", "main"],
    "path": ["a", "folder/b", "new"],
    "dest_path": ["copy", "folder/copy"],
    "src_path": ["a", "folder/b", "nothing"],
    "prefix": ["", "folder/"],
    "delimiter": ["/", ""],
}
KEPT_ONE_IN = 4


def _chosen(name, value):
    """An existing name in place of a generated one, mostly."""
    known = KNOWN.get(name)
    if known is None or not isinstance(value, str):
        return value
    number = sum(value.encode(errors="replace")) + len(value)
    return value if number % KEPT_ONE_IN == KEPT_ONE_IN - 1 else known[number % len(known)]


@schemathesis.hook
def map_path_parameters(context, path_parameters):
    """Names in paths."""
    if context.operation.definition.raw.get("operationId") in ("deleteRepository", "deleteBranch", "deleteTag"):
        return path_parameters
    return {name: _chosen(name, value) for name, value in (path_parameters or {}).items()}


@schemathesis.hook
def map_query(context, query):
    """Names in queries."""
    return {name: _chosen(name, value) for name, value in query.items()} if query else query


@schemathesis.hook
def map_body(context, body):
    """Names in bodies."""
    return {name: _chosen(name, value) for name, value in body.items()} if isinstance(body, dict) else body
