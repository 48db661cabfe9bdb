"""The S3 server of the tests: moto, with conditional writes that are atomic, as S3's are.

moto looks whether an object exists and stores the new one in two steps, in a thread for each request: under load two
requests with ``If-None-Match: *`` can both succeed. Here one lock holds both steps together. The log also names each
request's client.

A run of the tests asks tens of thousands of times, so a request does not do again what has no effect here: list the
folder of moto's modules to see which service a host means, look for a bucket in the host's name, allow scripts of other
sites, choose each letter of a request's id, and format a line of the log for a terminal.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache
from itertools import count
from threading import Event, RLock, Thread
from typing import Any

from moto import settings
from moto.core import responses
from moto.moto_server import werkzeug_app
from moto.moto_server.werkzeug_app import DomainDispatcherApplication
from moto.s3.responses import S3Response
from moto.server import main
from werkzeug.serving import WSGIRequestHandler

_LOCK = RLock()
_REQUEST_IDS = count(1)


def _one_at_a_time(method: Callable[..., Any]) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        with _LOCK:  # the body of the request is read already
            return method(*args, **kwargs)

    return called


def _log_request(handler: WSGIRequestHandler, code: int | str = "-", size: int | str = "-") -> None:
    client = handler.headers.get("User-Agent", "-") if hasattr(handler, "headers") else "-"
    line = f'{handler.address_string()} - - [{handler.log_date_time_string()}] "{handler.requestline}" {code} {size}'
    sys.stderr.write(f'{line} "{client}"\n')


def _number_request(headers: dict[str, Any] | None = None) -> str:
    request_id = f"{next(_REQUEST_IDS):052}"
    if headers is not None:
        headers["x-amzn-requestid"] = request_id
    return request_id


def _end_with_parent() -> None:
    """End this process when the tests have ended, also if they were killed and could not end it."""
    parent = os.getppid()
    while os.getppid() == parent:
        Event().wait(1.0)
    os._exit(0)


if __name__ == "__main__":
    Thread(target=_end_with_parent, daemon=True).start()
    WSGIRequestHandler.log_request = _log_request  # type: ignore[method-assign]
    settings.S3_IGNORE_SUBDOMAIN_BUCKETNAME = werkzeug_app.DISABLE_GLOBAL_CORS = True  # type: ignore[attr-defined]
    responses.gen_amzn_requestid_long = _number_request
    looked_up = cache(DomainDispatcherApplication.get_backend_for_host)
    DomainDispatcherApplication.get_backend_for_host = looked_up  # type: ignore[method-assign]
    for name in ("put_object", "copy_object", "_key_response_post"):
        setattr(S3Response, name, _one_at_a_time(getattr(S3Response, name)))
    main()
