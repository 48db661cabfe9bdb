"""Uploads in parts: what is completed is the parts, once; what is not leaves nothing."""

from __future__ import annotations

import hashlib
import threading
import zlib
from base64 import b64encode
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, unquote

import pytest
from botocore.exceptions import ClientError

from lakebed.errors import NotFound
from lakebed.repo.heads import multipart
from lakebed.repo.transport.transport import context_of
from worlds.errors import raises

Code = Callable[[Callable[[], Any]], str]
MIB = 1 << 20

# Of a reply that comes before the body was asked for, boto3 leaves the connection to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
FIRST, LAST = b"1" * (5 * MIB), b"2" * 1_000


def begin(s3: Any, bucket: str, key: str, **options: Any) -> str:
    return str(s3.create_multipart_upload(Bucket=bucket, Key=key, **options)["UploadId"])


def put(s3: Any, bucket: str, key: str, upload: str, number: int, body: bytes) -> dict[str, Any]:
    reply = s3.upload_part(Bucket=bucket, Key=key, UploadId=upload, PartNumber=number, Body=body)
    return {"PartNumber": number, "ETag": reply["ETag"]}


def complete(s3: Any, bucket: str, key: str, upload: str, parts: list[dict[str, Any]], **options: Any) -> Any:
    return s3.complete_multipart_upload(
        Bucket=bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": parts}, **options
    )


def test_parts_become_one_object_in_their_order(gateway: Any, bucket: str, code: Code) -> None:
    """The object is the named parts, with the metadata of the beginning and the ETag that clients compute."""
    s3 = gateway.s3()
    upload = begin(s3, bucket, "o", Metadata={"m": "1"}, ContentType="text/plain")
    last = put(s3, bucket, "o", upload, 10_000, LAST)
    put(s3, bucket, "o", upload, 3, b"replaced")
    first = put(s3, bucket, "o", upload, 3, FIRST)
    assert code(lambda: s3.get_object(Bucket=bucket, Key="o")) == "NoSuchKey"
    listed = s3.list_parts(Bucket=bucket, Key="o", UploadId=upload, MaxParts=1)
    assert ([part["PartNumber"] for part in listed["Parts"]], listed["IsTruncated"]) == ([3], True)
    listed = s3.list_parts(Bucket=bucket, Key="o", UploadId=upload, PartNumberMarker=listed["NextPartNumberMarker"])
    assert [(part["PartNumber"], part["Size"]) for part in listed["Parts"]] == [(10_000, 1_000)]
    assert [row["UploadId"] for row in s3.list_multipart_uploads(Bucket=bucket)["Uploads"]] == [upload]
    digests = b"".join(hashlib.md5(body).digest() for body in (FIRST, LAST))
    tag = f'"{hashlib.md5(digests).hexdigest()}-2"'
    assert complete(s3, bucket, "o", upload, [first, last])["ETag"] == tag
    got = s3.get_object(Bucket=bucket, Key="o")
    assert (got["Body"].read(), got["ETag"], got["Metadata"]) == (FIRST + LAST, tag, {"m": "1"})
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=bucket)
    # A completion whose reply was lost is asked for again: the same answer, and what came later stays.
    s3.put_object(Bucket=bucket, Key="o", Body=b"later")
    assert complete(s3, bucket, "o", upload, [first, last])["ETag"] == tag
    assert s3.get_object(Bucket=bucket, Key="o")["Body"].read() == b"later"
    for late in (
        lambda: put(s3, bucket, "o", upload, 1, b"x"),
        lambda: s3.abort_multipart_upload(Bucket=bucket, Key="o", UploadId=upload),
        lambda: s3.list_parts(Bucket=bucket, Key="o", UploadId=upload),
    ):
        assert code(late) == "NoSuchUpload"


@pytest.mark.parametrize("bodies", [(LAST,), (FIRST, LAST)], ids=["one part", "two parts"])
def test_a_completion_compares_the_whole_object(
    gateway: Any, bucket: str, code: Code, bodies: tuple[bytes, ...]
) -> None:
    """The checksum and the size that a client states are of the joined bytes: wrong ones make no object."""
    s3, whole = gateway.s3(), b"".join(bodies)
    right, wrong = (b64encode(zlib.crc32(body).to_bytes(4, "big")).decode() for body in (whole, whole + b"x"))
    upload = begin(s3, bucket, "o")
    parts = [put(s3, bucket, "o", upload, number, body) for number, body in enumerate(bodies, 1)]
    for options, expected in (({"ChecksumCRC32": wrong}, "BadDigest"), ({"MpuObjectSize": 7}, "InvalidRequest")):
        assert code(lambda options=options: complete(s3, bucket, "o", upload, parts, **options)) == expected
    assert code(lambda: s3.get_object(Bucket=bucket, Key="o")) == "NoSuchKey"
    options = {"ChecksumCRC32": right, "ChecksumType": "FULL_OBJECT", "MpuObjectSize": len(whole)}
    complete(s3, bucket, "o", upload, parts, **options)
    assert s3.get_object(Bucket=bucket, Key="o")["Body"].read() == whole


def test_a_page_of_nothing_is_the_last(gateway: Any, bucket: str) -> None:
    """A client that asks for no rows is not told to go on from a marker that there is not."""
    s3 = gateway.s3()
    upload = begin(s3, bucket, "o")
    put(s3, bucket, "o", upload, 1, LAST)
    assert not s3.list_multipart_uploads(Bucket=bucket, MaxUploads=0)["IsTruncated"]
    assert not s3.list_parts(Bucket=bucket, Key="o", UploadId=upload, MaxParts=0)["IsTruncated"]


def test_a_key_that_xml_cannot_hold_is_uploaded(gateway: Any, bucket: str, code: Code) -> None:
    """Clients can read every reply; lists of uploads have the key in percent signs where they ask for those."""
    s3, key = gateway.s3(), "\x01/\uffff/a b"
    assert code(lambda: s3.get_object(Bucket=bucket, Key=key)) == "NoSuchKey"
    upload = begin(s3, bucket, key)
    part = put(s3, bucket, key, upload, 1, LAST)
    assert [row["Size"] for row in s3.list_parts(Bucket=bucket, Key=key, UploadId=upload)["Parts"]] == [len(LAST)]
    for options in ({}, {"Prefix": "\x01"}, {"KeyMarker": "\x01"}):
        page = s3.list_multipart_uploads(Bucket=bucket, EncodingType="url", MaxUploads=1, **options)
        assert (page["EncodingType"], [unquote(row["Key"]) for row in page["Uploads"]]) == ("url", [key])
        assert (unquote(page["NextKeyMarker"]), page.get("Prefix", "")) == (key, quote(options.get("Prefix", "")))
    complete(s3, bucket, key, upload, [part])
    assert s3.get_object(Bucket=bucket, Key=key)["Body"].read() == LAST


def test_a_number_of_a_part_that_no_integer_can_be_is_refused(gateway: Any, bucket: str) -> None:
    """However many digits it has."""
    s3 = gateway.s3()
    upload = begin(s3, bucket, "o")
    for number in ("1" + "0" * 5_000, "0" * 8 + "1" * 5_000):
        body = f"<CompleteMultipartUpload><Part><PartNumber>{number}</PartNumber><ETag>x</ETag></Part>"
        answer = gateway.send(
            "POST", f"/{bucket}/o?uploadId={upload}", body=(body + "</CompleteMultipartUpload>").encode()
        )
        assert (answer.status, b"MalformedXML" in answer.data) == (400, True)


def test_what_cannot_be_completed_changes_nothing(gateway: Any, bucket: str, code: Code) -> None:
    """Parts that are missing, too small, wrong or out of order, and uploads of another key, are S3's own errors."""
    s3 = gateway.s3()
    upload = begin(s3, bucket, "o")
    small, last = put(s3, bucket, "o", upload, 1, FIRST[1:]), put(s3, bucket, "o", upload, 2, LAST)
    missing, wrong = {"PartNumber": 7, "ETag": last["ETag"]}, {"PartNumber": 2, "ETag": '"0"'}
    for parts, expected in (
        ([small, last], "EntityTooSmall"),
        ([last, small], "InvalidPartOrder"),
        ([last, last], "InvalidPartOrder"),
        ([missing], "InvalidPart"),
        ([wrong], "InvalidPart"),
        ([], "MalformedXML"),
    ):
        assert code(lambda parts=parts: complete(s3, bucket, "o", upload, parts)) == expected
    assert code(lambda: complete(s3, bucket, "other", upload, [last])) == "NoSuchUpload"
    assert code(lambda: complete(s3, bucket, "o", "nonsense", [last])) == "NoSuchUpload"
    assert code(lambda: put(s3, bucket, "o", upload, 10_001, b"x")) == "InvalidArgument"
    tag = s3.put_object(Bucket=bucket, Key="o", Body=b"there")["ETag"]
    assert code(lambda: complete(s3, bucket, "o", upload, [last], IfNoneMatch="*")) == "PreconditionFailed"
    assert s3.get_object(Bucket=bucket, Key="o")["Body"].read() == b"there"
    complete(s3, bucket, "o", upload, [last], IfMatch=tag)
    assert s3.get_object(Bucket=bucket, Key="o")["Body"].read() == LAST


def test_parts_are_copied_from_objects(gateway: Any, bucket: str, code: Code) -> None:
    """A part may be a range of an object; a range that is outside, or is written wrongly, is refused."""
    s3 = gateway.s3()
    s3.put_object(Bucket=bucket, Key="source", Body=FIRST + LAST)
    upload = begin(s3, bucket, "o")
    part = {"Bucket": bucket, "Key": "o", "UploadId": upload, "CopySource": f"{bucket}/source"}
    tags = [
        s3.upload_part_copy(**part, PartNumber=number, CopySourceRange=span)["CopyPartResult"]["ETag"]
        for number, span in ((1, f"bytes=0-{5 * MIB - 1}"), (2, f"bytes={5 * MIB}-{5 * MIB + 999}"))
    ]
    for span, expected in ((f"bytes=0-{6 * MIB}", "InvalidRange"), ("bytes=5", "InvalidArgument")):
        copy = code(lambda span=span: s3.upload_part_copy(**part, PartNumber=3, CopySourceRange=span))
        assert copy == expected
    complete(s3, bucket, "o", upload, [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(tags, 1)])
    assert s3.get_object(Bucket=bucket, Key="o")["Body"].read() == FIRST + LAST


def test_of_an_abort_and_a_completion_one_wins(gateway: Any, bucket: str) -> None:
    """Whichever comes first, the object is there exactly when the completion said so, and the abort then failed."""
    s3 = gateway.s3()
    for number in range(4):
        key = f"race-{number}"
        upload = begin(s3, bucket, key)
        parts = [put(s3, bucket, key, upload, 1, LAST)]
        ends: dict[str, str] = {}
        together = threading.Barrier(2)

        def run(name: str, call: Callable[[], Any], ends: Any = ends, together: Any = together) -> None:
            together.wait()
            try:
                call()
                ends[name] = "done"
            except ClientError as error:
                ends[name] = error.response["Error"]["Code"]

        calls = {
            "complete": lambda key=key, upload=upload, parts=parts: complete(s3, bucket, key, upload, parts),
            "abort": lambda key=key, upload=upload: s3.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload),
        }
        threads = [threading.Thread(target=run, args=item) for item in calls.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        keys = [row["Key"] for row in s3.list_objects(Bucket=bucket).get("Contents", [])]
        assert sorted(ends.values()) == ["NoSuchUpload", "done"], ends
        assert (key in keys) == (ends["complete"] == "done")


def test_an_abort_during_a_completion_wins_before_it_is_staged(gateway: Any, bucket: str) -> None:
    """A completion whose bytes are joined, and whose upload is aborted then, stages nothing."""
    s3, branch = gateway.s3(), bucket.partition(".")[2]
    upload = begin(s3, bucket, "o")
    part = put(s3, bucket, "o", upload, 1, LAST)
    context = context_of(gateway.running.site.repositories.repository("analytics"))
    wanted = [multipart.WantedPart(1, part["ETag"].strip('"'))]

    def abort() -> None:
        s3.abort_multipart_upload(Bucket=bucket, Key="o", UploadId=upload)

    with raises(NotFound, "upload_not_found"):
        multipart.complete_upload(context, upload, branch=branch, path="o", wanted=wanted, check=abort)
    assert "Contents" not in s3.list_objects(Bucket=bucket)


@pytest.mark.parametrize("end", ["abort", "complete"])
def test_parts_that_went_with_the_upload_meanwhile_are_not_missing(
    gateway: Any, bucket: str, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """A completion that finds no parts any more says that the upload is gone, or what another completion made."""
    s3, branch = gateway.s3(), bucket.partition(".")[2]
    upload = begin(s3, bucket, "o")
    part = put(s3, bucket, "o", upload, 1, LAST)
    context = context_of(gateway.running.site.repositories.repository("analytics"))
    wanted = [multipart.WantedPart(1, part["ETag"].strip('"'))]
    choose = multipart.choose_parts

    def choose_late(*args: Any) -> Any:
        monkeypatch.undo()
        if end == "abort":
            s3.abort_multipart_upload(Bucket=bucket, Key="o", UploadId=upload)
        else:
            complete(s3, bucket, "o", upload, [part])
        return choose(*args)

    monkeypatch.setattr(multipart, "choose_parts", choose_late)
    if end == "abort":
        with raises(NotFound, "upload_not_found"):
            multipart.complete_upload(context, upload, branch=branch, path="o", wanted=wanted)
    else:
        entry = multipart.complete_upload(context, upload, branch=branch, path="o", wanted=wanted)
        assert entry.size_bytes == len(LAST)


def test_uploads_that_were_left_are_forgotten(gateway: Any, bucket: str, code: Code) -> None:
    """A week after its last part an open upload and its parts are gone, and not a day before."""
    s3 = gateway.s3()
    upload = begin(s3, bucket, "o")
    put(s3, bucket, "o", upload, 1, LAST)
    context = context_of(gateway.running.site.repositories.repository("analytics"))
    multipart.trim_uploads(context)
    assert s3.list_parts(Bucket=bucket, Key="o", UploadId=upload)["Parts"]
    multipart.trim_uploads(context, now_ms=context.now_ms() + 6 * 86_400_000)
    assert s3.list_parts(Bucket=bucket, Key="o", UploadId=upload)["Parts"]
    multipart.trim_uploads(context, now_ms=context.now_ms() + 8 * 86_400_000)
    assert code(lambda: s3.list_parts(Bucket=bucket, Key="o", UploadId=upload)) == "NoSuchUpload"
    with context.key_value.snapshot() as snapshot:
        start = context.keys.parts(upload)
        assert list(snapshot.scan(start, start + b"\xff")) == []
