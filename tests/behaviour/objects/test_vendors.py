"""What is said of a remote store: requests as the server counts them, and errors without secrets."""

from __future__ import annotations

import os
import pickle
import random
import re
import traceback
from collections import Counter
from typing import Any

import pytest
from obstore.exceptions import GenericError

from lakebed.errors import InvalidRequest, NotFound, OutcomeUnknown, Unavailable
from lakebed.objects import StoreLimits, open_store
from lakebed.runtime import Environment
from lakebed.testing import ManualClock


def test_our_counts_are_the_servers(s3_server: Any) -> None:
    """Every request that the port counts is one that the server saw, of the same kind, and no other."""
    store = open_store(s3_server.url(), storage_options=s3_server.options)
    before = len(s3_server.request_lines())
    with store.count() as counts:
        for number in range(1000):
            store.put(f"many/{number:04d}", b"x", create_only=True)
        assert len(list(store.list())) == 1000  # a full last page is not followed by an empty one
        store.put("one-more", b"y" * 3_000_000)
        assert len(list(store.list())) == 1001
        assert len(list(store.list(start_after="many/0997"))) == 3
        store.list_with_delimiter()
        store.get("one-more")
        store.get_ranges("one-more", [(0, 10), (20, 30), (2_500_000, 2_600_000)])
        store.head("one-more")
        store.copy("one-more", "copied")
        store.copy("one-more", "copied-once", create_only=True)
        with pytest.raises(NotFound):
            store.get("missing")
        store.delete(meta.path for meta in store.list())
    seen: Counter[str] = Counter()
    for line in s3_server.request_lines()[before:]:
        match = re.search(r"(GET|HEAD|PUT|POST|DELETE) (\S+) HTTP", line)
        assert match is not None, line
        seen["LIST" if "list-type=2" in match[2] else match[1]] += 1
    ours = (counts.list, counts.get, counts.head, counts.delete)
    assert ours == (seen["LIST"], seen["GET"], seen["HEAD"], seen["POST"])
    assert counts.put + counts.copy == seen["PUT"]  # a copy is a PUT that names its source
    assert counts.total == sum(seen.values())
    assert (counts.retries, counts.errors) == (0, 0)


def secrets_in(error: BaseException, secrets: list[str]) -> list[str]:
    """Which secrets appear in an error, its causes and contexts, as printed or pickled."""
    text = "".join(traceback.format_exception(error))
    chain: BaseException | None = error
    while chain is not None:
        text += repr(chain)
        chain = chain.__cause__ or chain.__context__
    text += repr(pickle.dumps(error))
    return [secret for secret in secrets if secret in text]


def failures(server: Any, url: str, options: dict[str, str]) -> list[BaseException]:
    """The error of every kind of request."""
    limits = StoreLimits(retry_count_max=1, request_timeout_ms=3_000)
    environment = Environment(clock=ManualClock(), rng=random.Random(1))
    store = open_store(url, storage_options=options, limits=limits, environment=environment)
    caught: list[BaseException] = []
    for ask in (
        lambda: store.get("a"),
        lambda: store.put("a", b"1"),
        lambda: store.put("a", b"1", create_only=True),
        lambda: list(store.list()),
        lambda: store.delete(["a"]),
    ):
        with pytest.raises((InvalidRequest, NotFound, Unavailable, OutcomeUnknown)) as info:
            ask()
        caught.append(info.value)
    return caught


def test_a_missing_bucket_is_one_sentence(s3_server: Any) -> None:
    """It is the bucket that is missing, not the object."""
    for error in failures(s3_server, "s3://no-such-bucket/x", dict(s3_server.options)):
        assert isinstance(error, NotFound)
        assert error.kind == "bucket_not_found"
        assert "s3://no-such-bucket" in str(error)
        assert "\n" not in str(error)


def test_wrong_credentials_are_one_sentence(azure_server: Any) -> None:
    """Azure refuses a wrong key: said once, without the key."""
    wrong = "d3Jvbmcga2V5IHdyb25nIGtleSB3cm9uZyBrZXk="
    options = {**azure_server.options, "azure_storage_account_key": wrong}
    for error in failures(azure_server, azure_server.url(), options):
        assert isinstance(error, InvalidRequest)
        assert error.kind == "permission_denied"
        assert "credentials" in str(error)
        assert "\n" not in str(error)
        assert secrets_in(error, [wrong]) == []


def test_a_server_that_is_gone_is_unavailable(s3_server: Any) -> None:
    """A refused connection certainly has no effect, so a create-only put is `Unavailable` too."""
    options = {**s3_server.options, "aws_endpoint": "http://127.0.0.1:1"}
    for error in failures(s3_server, "s3://bucket", options):
        assert isinstance(error, Unavailable)
        assert secrets_in(error, [options["aws_secret_access_key"]]) == []


def test_secrets_stay_secret(s3_server: Any) -> None:
    """Neither the store's repr nor its URLs show what it was opened with."""
    url = s3_server.url()
    store = open_store(url, storage_options=s3_server.options)
    secret = s3_server.options["aws_secret_access_key"]
    for text in (repr(store), store.root_url, store.url("a"), repr(store.__reduce__())):
        assert secret not in text
    assert store.root_url == url


def test_a_shared_signature_does_not_reach_an_error(azure_server: Any) -> None:
    """A signature that travels in the URL is blotted out of the vendor's own text."""
    options = {name: value for name, value in azure_server.options.items() if "key" not in name}
    options["azure_storage_sas_key"] = "sv=2021-12-02&sig=very-secret-signature"
    for error in failures(azure_server, azure_server.url(), options):
        assert secrets_in(error, ["very-secret-signature"]) == []


@pytest.mark.parametrize("first", ["!", "0", "z"])
def test_secrets_that_the_vendor_quotes_do_not_reach_an_error(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither those of the options nor those of the environment, also where one begins as another does."""
    monkeypatch.setenv("AWS_SESSION_TOKEN", f"{first}token-of-the-environment")
    options = {"aws_access_key_id": "id", "aws_secret_access_key": f"{first}token", "aws_region": "us-east-1"}
    store = open_store("s3://bucket/prefix", storage_options=options)
    error = GenericError(
        f"signed with {first}token and {first}token-of-the-environment: GET http://127.0.0.1:9/bucket?"
        f"X-Amz-Security-Token={first}token-of-the-environment&X-Amz-Signature=0{first}signed&x=1"
    )

    def fail() -> None:
        raise error

    with pytest.raises(Unavailable) as caught:
        store._driver._ask("a", fail)
    assert secrets_in(caught.value, [f"{first}token", "-of-the-environment", "signed&"]) == []
    assert str(caught.value.__cause__).startswith("signed with ... and ...: GET http")
    assert str(caught.value.__cause__).endswith("X-Amz-Signature=...&x=1")


def test_wrong_settings_are_one_sentence(s3_server: Any) -> None:
    """An unknown option is named, with examples; an endpoint that is not a URL is refused before it is used."""
    with pytest.raises(InvalidRequest, match="aws_acces_key"):
        open_store("s3://b", storage_options={"aws_acces_key": "x", "aws_region": "y"})
    for endpoint in ("::::", "localhost:9000", "ftp://x"):
        with pytest.raises(InvalidRequest, match="endpoint"):
            open_store("s3://b", storage_options={**s3_server.options, "aws_endpoint": endpoint})


def test_environment_variables_serve(s3_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without storage options, the vendor's usual variables are read."""
    for name, value in s3_server.options.items():
        monkeypatch.setenv(name.upper() if name != "aws_endpoint" else "AWS_ENDPOINT_URL", value)
    store = open_store(s3_server.url())
    store.put("a", b"1")
    assert bytes(store.get("a")) == b"1"


def test_a_remote_store_pickles_with_its_options(s3_server: Any) -> None:
    """An executor opens the same store; the options travel only in the pickle."""
    store = open_store(s3_server.url(), storage_options=s3_server.options).sub("x")
    copy = pickle.loads(pickle.dumps(store))
    store.put("a", b"1")
    assert bytes(copy.get("a")) == b"1"


def test_signed_urls(store: Any) -> None:
    """A signed URL serves where the vendor has it, and is refused in one sentence where not."""
    store.put("a b", b"1")
    if store.root_url.startswith(("file", "memory")):
        with pytest.raises(InvalidRequest, match="signed"):
            store.signed_url("a b", expires_in_s=60)
        return
    url = store.signed_url("a b", expires_in_s=60)
    assert url.startswith("http://127.0.0.1:")
    assert "a%20b?" in url


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_is_told_that_its_client_is_dead(s3_server: Any) -> None:
    """A child of a process that has used a remote store would wait for ever: it is refused at once."""
    store = open_store(s3_server.url(), storage_options=s3_server.options)
    store.put("a", b"1")
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        messages = b"nothing"
        try:
            store.get("a")
        except InvalidRequest as error:
            messages = error.kind.encode()
        finally:
            os.write(sender, messages)
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(receiver, 100) == b"forked_process"
    os.close(receiver)
    os.close(sender)
    assert bytes(store.get("a")) == b"1"


def test_a_path_that_a_bucket_cannot_have_is_deleted_without_a_request() -> None:
    """Nothing can be there, so it is no obstacle to the deletion of other objects."""
    store = open_store(
        "s3://bucket/prefix", storage_options={"aws_region": "us-east-1", "aws_endpoint": "http://127.0.0.1:9"}
    )
    store.delete(["p=a\nb/bucket-0/file", "c\x7f"])


@pytest.mark.parametrize("elapsed", ["29.416495ms", "1.403s", "401.3ms", "416ns"])
def test_how_long_a_request_took_says_nothing_about_it(elapsed: str) -> None:
    """A number in the client's message that looks like a status is not taken for one: the outcome stays unknown."""
    store = open_store(
        "s3://bucket/prefix", storage_options={"aws_region": "us-east-1", "aws_endpoint": "http://127.0.0.1:9"}
    )
    text = (
        f"Generic S3 error: Error performing PUT http://127.0.0.1:9/bucket/wal/416.wal in {elapsed} - HTTP error: "
        f"error sending request\n\nDebug source: elapsed: {elapsed}, IncompleteMessage"
    )
    error = GenericError(text)
    assert isinstance(store._driver._translate(error, "wal/416.wal", unclear=True), OutcomeUnknown)
    assert isinstance(store._driver._translate(error, "wal/416.wal", unclear=False), Unavailable)
