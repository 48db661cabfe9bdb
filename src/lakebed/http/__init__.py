"""Serving HTTP: what every service of lakebed shares.

Owns: endpoints and their description, authentication around handlers, reading requests within limits, replies, errors
as statuses, streams, thread pools, the access log, and the life of a serving process. A service provides a `Site`
(`lakebed.http.site`) and its `Routes`; `lakebed.http.application.build` makes an ASGI application of them. Does not
know: repositories, databases or lakeFS (`lakebed.server` does). Needs the extra ``lakebed[server]``.
"""
