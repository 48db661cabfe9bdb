"""Errors as replies."""

from __future__ import annotations

import json

import pytest
import urllib3

from lakebed import errors
from lakebed.errors import InvalidRequest, NotFound
from lakebed.http.asking import error_of
from lakebed.server.errors import error_reply, status_of


def test_every_kind_of_error_has_a_status() -> None:
    """Each class of errors has its status; none falls through to 500 unnoticed."""
    statuses = {
        name: status_of(getattr(errors, name)("sentence.")) for name in errors.__all__ if name != "LakebedError"
    }
    assert statuses == {
        "AlreadyExists": 409, "Closed": 503, "Conflict": 409, "Corruption": 500, "Fenced": 503, "InternalError": 500,
        "InvalidRequest": 400, "NotFound": 404, "OutcomeUnknown": 503, "Rejected": 409, "Unavailable": 503,
        "UnsupportedFormat": 500,
    }  # fmt: skip


@pytest.mark.parametrize(
    "error",
    [ValueError("inside: secret"), errors.Corruption("inside: secret"), errors.InternalError("inside: secret"),
     errors.UnsupportedFormat("inside: secret"), RecursionError("inside: secret")],
)  # fmt: skip
def test_nothing_of_the_inside_is_told(error: Exception) -> None:
    """A reply of 500 names the request, and nothing of what went wrong."""
    reply = error_reply(error, request_id="abc-1")
    assert reply.status_code == 500
    body = json.loads(reply.body)
    assert set(body) == {"message"}
    assert "abc-1" in body["message"]
    assert "secret" not in body["message"]


def test_a_client_is_told_that_data_is_of_a_newer_version() -> None:
    """What an older server cannot read of a newer one is no damage: the reply says what to upgrade."""
    body = json.loads(error_reply(errors.UnsupportedFormat("inside: secret"), request_id="abc-1").body)
    assert "newer" in body["message"]
    assert "upgrade the server" in body["message"]


def test_a_client_is_told_the_kind() -> None:
    """The kind of an error is in a header, for programs."""
    reply = error_reply(errors.Conflict("sentence.", kind="merge_conflict"), request_id="")
    assert reply.headers["x-lakebed-error"] == "merge_conflict"


def test_a_client_is_told_the_class_and_plain_facts() -> None:
    """The client of lakebed raises the same class with the same facts; facts that are not JSON stay in the server."""
    facts = {"paths": ["a", "b"], "count": 2, "near": ("x",), "none": None, "deep": {"k": [1.5, True]}}
    reply = error_reply(
        errors.Conflict("sentence.", kind="merge_conflict", **facts, raw=b"x", thing=object(), bad={1: 2}),
        request_id="",
    )
    assert reply.headers["x-lakebed-error-class"] == "Conflict"
    assert json.loads(reply.body) == {"message": "sentence.", "facts": {**facts, "near": ["x"]}}


def test_words_of_lakefs_stand_in_front_of_the_sentence() -> None:
    """Scripts find lakeFS's words, people the sentence next to them, and lakebed's own client shows the sentence."""
    blocked = InvalidRequest("Branch main is protected.", kind="protected_branch", action="commit to")
    for error, status, words in (
        (NotFound("There is no user 'ann'.", kind="user_not_found"), 404, "user not found"),
        (blocked, 403, "cannot commit to protected branch"),
        (NotFound("There is no object.", kind="path_not_found"), 404, "There is no object."),
    ):
        reply = error_reply(error, request_id="r")
        body = json.loads(reply.body)
        assert (reply.status_code, body["message"]) == (status, words)
        assert body.get("explanation", words) in (error.message, words)
        answer = urllib3.HTTPResponse(body=bytes(reply.body), headers=dict(reply.headers), status=status)
        shown = error_of(answer, endpoint="http://x", again=True)
        assert (type(shown), shown.kind, shown.message) == (type(error), error.kind, error.message)
