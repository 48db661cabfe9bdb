"""The S3 server of the tests: moto, with conditional writes that are atomic, as S3's are.

moto looks whether an object exists and stores the new one in two steps, in a thread for each request: under load two
requests with ``If-None-Match: *`` can both succeed. Here one lock holds both steps together. The log also names each
request's client. And moto lists the folder of its own modules at every request, to see which service a host means,
which is half of what a request takes: here it looks once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from threading import RLock
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication
from moto.s3.responses import S3Response
from moto.server import main
from werkzeug.serving import WSGIRequestHandler

_LOCK = RLock()


def _one_at_a_time(method: Callable[..., Any]) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        with _LOCK:  # the body of the request is read already
            return method(*args, **kwargs)

    return called


def _log_request(handler: WSGIRequestHandler, code: int | str = "-", size: int | str = "-") -> None:
    client = handler.headers.get("User-Agent", "-") if hasattr(handler, "headers") else "-"
    handler.log("info", '"%s" %s %s "%s"', handler.requestline, code, size, client)


if __name__ == "__main__":
    WSGIRequestHandler.log_request = _log_request  # type: ignore[method-assign]
    looked_up = cache(DomainDispatcherApplication.get_backend_for_host)
    DomainDispatcherApplication.get_backend_for_host = looked_up  # type: ignore[method-assign]
    for name in ("put_object", "copy_object", "_key_response_post"):
        setattr(S3Response, name, _one_at_a_time(getattr(S3Response, name)))
    main()
