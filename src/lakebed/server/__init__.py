"""The REST server: repositories over HTTP, for lakebed's own facade and for unmodified lakeFS clients.

Owns: routes, access keys, the audit log, and what one process opens and closes. `lakebed.http` serves it. The package
has no storage logic: a handler calls `lakebed.repo` and replies. Needs the extra ``lakebed[server]``. The entry point
is `lakebed.server.serve`.
"""
