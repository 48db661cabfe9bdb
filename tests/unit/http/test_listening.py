"""Addresses as messages and URLs write them."""

from __future__ import annotations

import io
import sys

import pytest

from lakebed.errors import InvalidRequest, LakebedError
from lakebed.http.listening import bind, check_host, url_of
from lakebed.key_value.postgres_connections import Connections
from lakebed.log import warn
from lakebed.repo.records.hooks import redact_url
from lakebed.runtime import Environment
from lakebed.texts import host_in_url


@pytest.mark.parametrize(
    ("host", "shown"), [("::1", "[::1]"), ("[::1]", "[::1]"), ("127.0.0.1", "127.0.0.1"), ("localhost", "localhost")]
)
def test_a_url_has_brackets_around_an_address_with_colons(host: str, shown: str) -> None:
    """Without them its last group would read as the port."""
    assert host_in_url(host) == shown


def test_messages_have_brackets_around_an_address_with_colons() -> None:
    """Refusals, URLs of servers, databases and webhooks write an IPv6 address as a URL does."""
    with pytest.raises(InvalidRequest, match=r"\[::\] can be reached"):
        check_host("::", allow_remote=False)
    with pytest.raises(LakebedError, match=r"\[2001:db8::1\]"):
        bind("2001:db8::1", 0, backlog=1)
    with bind("::1", 0, backlog=1) as listener:
        assert url_of("::1", listener) == f"http://[::1]:{listener.getsockname()[1]}"
        with pytest.raises(LakebedError, match=r"of \[::1\] is in use"):
            bind("::1", listener.getsockname()[1], backlog=1)
    assert Connections({"host": "::1", "port": "5"}, environment=Environment()).shown == "postgresql://[::1]:5/"
    assert redact_url("https://user:word@[::1]:8/hook?token=x") == "https://[::1]:8/hook"


def test_a_service_that_cannot_print_serves_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it would say on a standard error that is full or closed is lost, and nothing else."""
    full = open("/dev/full", "w")  # noqa: SIM115
    closed = io.StringIO()
    closed.close()
    for stream in (None, closed, full):
        monkeypatch.setattr(sys, "stderr", stream)
        warn("a line")
    with pytest.raises(OSError, match="No space left"):
        full.close()
