"""What schemathesis should know of the catalogs under test: names that exist, so that requests come past a first look.

Loaded by schemathesis in the clients' environment. Of the generated names most are replaced by existing ones, by a rule
that depends on nothing but the generated name; the others stay, and are mistakes that must be refused well.
"""

import schemathesis

KNOWN = {
    "prefix": ["lake"],
    "database": ["db", "default"],
    "namespace": ["db", "default"],
    "table": ["t", "t$branch_dev"],
    "tag": ["v1"],
    "branch": ["dev"],
    "version": ["LATEST", "EARLIEST", "1", "v1"],
    "warehouse": ["lake"],
}
KEPT_ONE_IN = 6
DESTROYS = ("paimonDropTable", "paimonDropDatabase", "paimonDeleteBranch", "paimonDeleteTag", "paimonRollback")


def _chosen(name, value):
    """An existing name in place of a generated one, mostly."""
    known = KNOWN.get(name)
    if known is None or not isinstance(value, str):
        return value
    number = sum(value.encode(errors="replace")) + len(value)
    return value if number % KEPT_ONE_IN == KEPT_ONE_IN - 1 else known[number % len(known)]


@schemathesis.hook
def map_path_parameters(context, path_parameters):
    """Names in paths; what others need is not destroyed."""
    chosen = {name: _chosen(name, value) for name, value in (path_parameters or {}).items()}
    if context.operation.definition.raw.get("operationId") in DESTROYS:
        chosen |= {name: value for name, value in (path_parameters or {}).items() if name != "prefix"}
    return chosen


@schemathesis.hook
def map_query(context, query):
    """Names in queries."""
    return {name: _chosen(name, value) for name, value in query.items()} if query else query
