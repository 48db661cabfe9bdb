"""The clients' side of the interoperability tests; run by the interpreter of the clients' environment.

Reads one JSON request a line (``flow``: the name of a function of ``flows/``, ``server``: where it runs, and the first
access key), runs that flow, and answers one JSON line: ``{}``, or ``{"error": "..."}`` with a traceback. A flow that
hangs ends the process, with all stacks in its log.
"""

import contextlib
import faulthandler
import importlib
import json
import sys
import time
import traceback
import uuid
from pathlib import Path

import lakefs
import urllib3

FLOW_S_MAX = 180
ASKED_BY_TURNS = 16
"""Requests of which each process of a server gets some, but once in tens of thousands of times."""
UNTIL_S_MAX = 30


class Lake:
    """A running server, as a flow sees it."""

    def __init__(self, server):
        self.endpoint = server["endpoint"]
        self.access_key = server["access_key_id"]
        self.secret = server["secret_access_key"]
        self.signs = server["signs"]
        self.folder = server["folder"]
        self.outside_url = server["outside_url"]
        self.outside_http = server["outside_http"]
        self.by_turns = server["by_turns"]
        self.client = self.with_key(self.access_key, self.secret)
        self.http = urllib3.PoolManager(retries=False, maxsize=16)

    def with_key(self, access_key, secret):
        """A client with an access key of its own."""
        return self.distributed(lakefs.Client(host=self.endpoint, username=access_key, password=secret))

    def distributed(self, client):
        """A client; where several processes serve, one whose requests come to all of them, not only to the first."""
        if self.by_turns:
            client.sdk_client.objects_api.api_client.set_default_header("Connection", "close")
        return client

    def name(self):
        """A name that is not in use."""
        return f"r-{uuid.uuid4().hex[:12]}"

    def repository(self, name=None):
        """A new repository."""
        name = name or self.name()
        return lakefs.Repository(name, client=self.client).create(storage_namespace=f"local://{name}")

    def headers(self, client=None):
        """Of a request with an access key."""
        config = (client or self.client).config
        return dict(urllib3.make_headers(basic_auth=f"{config.username}:{config.password}"))

    def outside(self, path, body):
        """Put an object where the server may import from; its URL as clients write it."""
        if self.outside_http:
            assert self.http.request("PUT", f"{self.outside_http}/{path}", body=body).status == 200
        else:
            file = Path(self.folder, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(body)
        return f"{self.outside_url}/{path}"

    def until(self, holds):
        """Ask until it is so in all processes of the server, of which some may know a little later."""
        end_s = time.monotonic() + UNTIL_S_MAX
        while not all(holds() for _ in range(ASKED_BY_TURNS if self.by_turns else 1)):
            assert time.monotonic() < end_s, "it never was so"

    def ask(self, method, place, body=None, client=None, **headers):
        """A request of no client: status, headers, body."""
        sent = {**self.headers(client), **headers}
        raw = None if body is None else json.dumps(body)
        reply = self.http.request(method, self.endpoint + place, body=raw, headers=sent, redirect=False)
        return reply.status, reply.headers, reply.data


def run(request, lakes):
    """Run one flow."""
    server = request["server"]
    lake = lakes.setdefault(server["endpoint"], None) or Lake(server)
    lakes[server["endpoint"]] = lake
    module, _, name = request["flow"].partition(".")
    getattr(importlib.import_module(f"flows.{module}"), name)(lake)


def main():
    """Answer until standard input ends."""
    answers, lakes = sys.stdout, {}
    for line in sys.stdin:
        answer = {}
        faulthandler.dump_traceback_later(FLOW_S_MAX, exit=True)
        try:
            with contextlib.redirect_stdout(sys.stderr):
                run(json.loads(line), lakes)
        except Exception:  # any failure of a client is a reply: the test checks it
            answer = {"error": traceback.format_exc()}
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
