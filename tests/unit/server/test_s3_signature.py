"""Signatures of requests and of chunks, against AWS's examples and against botocore's signer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from unittest import mock
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from lakebed.errors import InvalidRequest
from lakebed.server.s3.body import SIGNED_CHUNKS, BodyPlan, decode
from lakebed.server.s3.signature import (
    EMPTY_SHA256,
    Signature,
    check_headers,
    check_signature,
    check_time,
    derive_key,
    is_signed,
    parse_signature,
)
from worlds.errors import raises

KEY_ID = "AKIAIOSFODNN7EXAMPLE"
SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
HOST = "examplebucket.s3.amazonaws.com"
SCOPE = "20130524/us-east-1/s3/aws4_request"
NOW = datetime(2013, 5, 24, tzinfo=UTC)
"""AWS's documents sign everything with these."""


def verify(method: str, url: str, headers: dict[str, str], more: Sequence[tuple[str, str]] = ()) -> Signature:
    """Check the signature of a request as it goes over the wire, where `more` may repeat headers."""
    parts = urlsplit(url)
    sent = [(name.lower(), value) for name, value in (*headers.items(), *more)]
    wire, texts = [(name.encode(), value.encode()) for name, value in sent], dict(sent)
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    signature = parse_signature(texts, pairs)
    check_headers(signature, texts)
    check_signature(
        signature,
        derive_key(SECRET, signature.scope),
        method=method,
        path=unquote(parts.path),
        raw_path=parts.path.encode(),
        pairs=pairs,
        headers=wire,
    )
    return signature


def test_the_example_of_awss_documents_is_verified() -> None:
    """A signature that AWS publishes is right, and with another byte of it, of the path or of a header it is wrong."""
    authorization = (
        f"AWS4-HMAC-SHA256 Credential={KEY_ID}/{SCOPE},SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,"
        "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
    )
    headers = {
        "Host": HOST,
        "Authorization": authorization,
        "Range": "bytes=0-9",
        "x-amz-content-sha256": EMPTY_SHA256,
        "x-amz-date": "20130524T000000Z",
    }
    verify("GET", f"http://{HOST}/test.txt", headers)
    algorithm, _, rest = authorization.partition(" ")
    turned = f"{algorithm} {', '.join(reversed(rest.split(',')))}"
    verify("GET", f"http://{HOST}/test.txt", headers | {"Authorization": turned, "Range": "  bytes=0-9 "})
    for changed in (
        {"Range": "bytes=0-8"},
        {"Authorization": authorization[:-1] + "2"},
        {"x-amz-date": "20130524T000001Z"},
    ):
        with raises(InvalidRequest, "SignatureDoesNotMatch"):
            verify("GET", f"http://{HOST}/test.txt", headers | changed)
    for method, path in (("PUT", "/test.txt"), ("GET", "/test.txs"), ("GET", "/test.txt?acl")):
        with pytest.raises(InvalidRequest):
            verify(method, f"http://{HOST}{path}", headers)


def test_a_header_that_repeats_is_signed_with_all_its_values() -> None:
    """What was signed as one value with a comma comes as two headers; with another order of them it is refused."""
    request = AWSRequest("PUT", f"http://{HOST}/a", headers={"x-amz-meta-a": "one  two,three", "Host": HOST})
    with mock.patch("botocore.auth.get_current_datetime", return_value=NOW.replace(tzinfo=None)):
        S3SigV4Auth(Credentials(KEY_ID, SECRET), "s3", "eu-central-1").add_auth(request)
    sent = dict(request.headers.items())
    del sent["x-amz-meta-a"]
    values = [("x-amz-meta-a", " one two "), ("x-amz-meta-a", "three")]
    verify("PUT", request.url, sent, values)
    with pytest.raises(InvalidRequest):
        verify("PUT", request.url, sent, values[::-1])


texts = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), min_size=1, max_size=12)


@given(
    method=st.sampled_from(["GET", "PUT", "DELETE", "HEAD", "POST"]),
    path=texts.filter(lambda text: text not in (".", "..")),
    query=st.dictionaries(texts, texts, max_size=3),
    value=st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=8),
    in_query=st.booleans(),
)
def test_what_botocore_signs_is_verified_and_what_is_changed_is_not(
    method: str, path: str, query: dict[str, str], value: str, in_query: bool
) -> None:
    """Any path, query and header is canonicalised as botocore does it; a request for another path is refused."""
    names = [name for name in query if name.lower().startswith("x-amz-")]
    for name in names:
        del query[name]
    url = f"http://{HOST}/{quote(path, safe='/~')}"
    if query:
        url += "?" + "&".join(f"{quote(name, safe='~')}={quote(text, safe='~')}" for name, text in query.items())
    request = AWSRequest(method, url, headers={"x-amz-meta-a": value, "Host": HOST})
    signer = (S3SigV4QueryAuth if in_query else S3SigV4Auth)(Credentials(KEY_ID, SECRET), "s3", "eu-central-1")
    with mock.patch("botocore.auth.get_current_datetime", return_value=NOW.replace(tzinfo=None)):
        signer.add_auth(request)
    sent = dict(request.headers.items())
    verify(method, request.url, sent)
    assert is_signed([(name.lower().encode(), text.encode()) for name, text in sent.items()], request.url.encode())
    with raises(InvalidRequest, "SignatureDoesNotMatch"):
        verify(method, request.url.replace(HOST + "/", HOST + "/x", 1), sent)
    with pytest.raises(InvalidRequest):
        verify(method, request.url, sent | {"x-amz-copy-source": "/other/secret"})


def signature_of(*, timestamp: str = "20130524T000000Z", expires_s: int | None = None) -> Signature:
    return Signature(KEY_ID, SCOPE, timestamp, ("host",), "0" * 64, "UNSIGNED-PAYLOAD", expires_s)


@pytest.mark.parametrize(
    ("signature", "seconds", "kind"),
    [
        (signature_of(), 899, None),
        (signature_of(), -899, None),
        (signature_of(), 901, "RequestTimeTooSkewed"),
        (signature_of(), -901, "RequestTimeTooSkewed"),
        (signature_of(timestamp="20130525T000000Z"), 86_400, "AuthorizationHeaderMalformed"),
        (signature_of(timestamp="yesterday"), 0, "AccessDenied"),
        (signature_of(expires_s=3_600), 3_599, None),
        (signature_of(expires_s=3_600), 3_600, "AccessDenied"),
        (signature_of(expires_s=0), 0, "AccessDenied"),
        (signature_of(expires_s=3_600), -901, "AccessDenied"),
    ],
)
def test_a_signature_of_another_time_is_refused(signature: Signature, seconds: int, kind: str | None) -> None:
    """A clock may be off by 15 minutes; a presigned URL holds as long as it says; the day is that of the key."""
    now_ms = round((NOW.timestamp() + seconds) * 1000)
    if kind is None:
        check_time(signature, now_ms=now_ms)
    else:
        with raises(InvalidRequest, kind):
            check_time(signature, now_ms=now_ms)


@pytest.mark.parametrize("expires", ["604801", "-1", "1e3"])
def test_a_presigned_url_lives_a_week_at_most(expires: str) -> None:
    """A life that is no number up to seven days is refused, before anything is compared."""
    query = {
        "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
        "X-Amz-Credential": f"{KEY_ID}/{SCOPE}",
        "X-Amz-Date": "20130524T000000Z",
        "X-Amz-Expires": expires,
        "X-Amz-SignedHeaders": "host",
        "X-Amz-Signature": "0" * 64,
    }
    with raises(InvalidRequest, "AccessDenied"):
        parse_signature({"host": HOST}, list(query.items()))


CHUNKS = [
    (65_536, "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648"),
    (1_024, "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497"),
    (0, "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9"),
]
"""AWS's example of signed chunks."""
CHUNKED = b"".join(b"%x;chunk-signature=%s\r\n%s\r\n" % (size, text.encode(), b"a" * size) for size, text in CHUNKS)
SEED = "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"


def pieces_of(body: bytes, size: int) -> Iterator[bytes]:
    return (body[at : at + size] for at in range(0, len(body), size))


def chunk_plan(decoded_bytes: int = 66_560) -> BodyPlan:
    signature = Signature(KEY_ID, SCOPE, "20130524T000000Z", ("host",), SEED, SIGNED_CHUNKS)
    return BodyPlan(signature, derive_key(SECRET, SCOPE), decoded_bytes)


@pytest.mark.parametrize("size", [7, 1_000, 1 << 20])
def test_signed_chunks_are_verified_however_they_arrive(size: int) -> None:
    """The chunks of AWS's example are the object, in whatever pieces the network brings them."""
    assert b"".join(bytes(piece) for piece in decode(pieces_of(CHUNKED, size), chunk_plan())) == b"a" * 66_560


@pytest.mark.parametrize(
    ("body", "decoded_bytes", "kind"),
    [
        (CHUNKED.replace(b"aaaa", b"aaab", 1), 66_560, "SignatureDoesNotMatch"),
        (CHUNKED.replace(b"b6c6", b"b6c7"), 66_560, "SignatureDoesNotMatch"),
        (CHUNKED[: 65_536 + 200], 66_560, "IncompleteBody"),
        (CHUNKED[:-90], 66_560, "IncompleteBody"),
        (CHUNKED, 66_561, "IncompleteBody"),
        (CHUNKED, 66_559, "IncompleteBody"),
        (CHUNKED + b"more", 66_560, "IncompleteBody"),
        (b"zzz\r\n" + CHUNKED, 66_560, "IncompleteBody"),
        (b"", 66_560, "IncompleteBody"),
    ],
)
def test_chunks_that_differ_are_refused(body: bytes, decoded_bytes: int, kind: str) -> None:
    """A changed byte or signature, an end that is missing, a length that is wrong: the upload fails at the end."""
    with raises(InvalidRequest, kind):
        list(decode(pieces_of(body, 9_000), chunk_plan(decoded_bytes)))
