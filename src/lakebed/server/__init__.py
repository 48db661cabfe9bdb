"""The REST server: repositories over HTTP, for lakebed's own facade and for unmodified lakeFS clients.

Owns: routes, access keys, the audit and access logs, the process that serves. It has no storage logic: every handler
is a call of `lakebed.repo` and a reply. Needs the extra ``lakebed[server]``; `lakebed.server.serve` is the entrance.
"""
