"""Random calls of boto3 against a gateway and a dictionary: keys with bytes and metadata."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server

KEYS = st.sampled_from(["a", "a/1", "a/2", "a//b", "b c", "b+c", "ü/%2F", "z"])
BODIES = st.binary(max_size=40)
METADATA = st.dictionaries(st.sampled_from(["m", "n-o"]), st.sampled_from(["1", "x y"]), max_size=2)
PART = b"p" * (5 << 20)


def attempt(call: Callable[[], Any]) -> Any:
    """What a call gives; None: S3 refused it."""
    try:
        return call()
    except ClientError:
        return None


class GatewayAsDictionary(RuleBasedStateMachine):
    """What a branch's bucket shows is what a dictionary holds, whatever was put, copied, deleted or committed."""

    server: Any
    s3: Any
    number = 0

    @initialize()
    def begin(self) -> None:
        type(self).number += 1
        self.bucket = f"analytics.run-{self.number}"
        self.s3.create_bucket(Bucket=self.bucket)
        self.objects: dict[str, tuple[bytes, dict[str, str]]] = {}

    @rule(key=KEYS, body=BODIES, metadata=METADATA, condition=st.sampled_from(["", "absent", "match", "other"]))
    def put(self, key: str, body: bytes, metadata: dict[str, str], condition: str) -> None:
        options: dict[str, str] = {}
        allowed = True
        if condition == "absent":
            options, allowed = {"IfNoneMatch": "*"}, key not in self.objects
        elif condition == "match" and key in self.objects:
            options = {"IfMatch": self.s3.head_object(Bucket=self.bucket, Key=key)["ETag"]}
        elif condition == "other":
            options, allowed = {"IfMatch": '"0"'}, False
        place = {"Bucket": self.bucket, "Key": key, "Body": body, "Metadata": metadata, **options}
        assert (attempt(lambda: self.s3.put_object(**place)) is not None) == allowed
        if allowed:
            self.objects[key] = body, metadata

    @rule(source=KEYS, copied=KEYS, metadata=st.none() | METADATA)
    def copy(self, source: str, copied: str, metadata: dict[str, str] | None) -> None:
        options = {} if metadata is None else {"MetadataDirective": "REPLACE", "Metadata": metadata}
        allowed = source in self.objects and (source != copied or metadata is not None)
        place = {"Bucket": self.bucket, "Key": copied, "CopySource": {"Bucket": self.bucket, "Key": source}, **options}
        assert (attempt(lambda: self.s3.copy_object(**place)) is not None) == allowed
        if allowed:
            body, kept = self.objects[source]
            self.objects[copied] = body, kept if metadata is None else metadata

    @rule(key=KEYS, last=BODIES, ends=st.booleans())
    def upload_in_parts(self, key: str, last: bytes, ends: bool) -> None:
        upload = self.s3.create_multipart_upload(Bucket=self.bucket, Key=key)["UploadId"]
        place = {"Bucket": self.bucket, "Key": key, "UploadId": upload}
        parts = [
            {"PartNumber": number, "ETag": self.s3.upload_part(**place, PartNumber=number, Body=body)["ETag"]}
            for number, body in ((2, PART), (5, last))
        ]
        if ends:
            self.s3.complete_multipart_upload(**place, MultipartUpload={"Parts": parts})
            self.objects[key] = PART + last, {}
        else:
            self.s3.abort_multipart_upload(**place)

    @rule(keys=st.lists(KEYS, min_size=1, max_size=3, unique=True))
    def delete(self, keys: list[str]) -> None:
        if len(keys) == 1:
            self.s3.delete_object(Bucket=self.bucket, Key=keys[0])
        else:
            self.s3.delete_objects(Bucket=self.bucket, Delete={"Objects": [{"Key": key} for key in keys]})
        for key in keys:
            self.objects.pop(key, None)

    @rule()
    def commit(self) -> None:
        context = self.server.site.repositories.repository("analytics")
        context.branch(self.bucket.partition(".")[2]).commit("a commit", committer="ann", allow_empty=True)

    @rule(key=KEYS, first=st.integers(0, 40), last=st.integers(0, 40))
    def read_range(self, key: str, first: int, last: int) -> None:
        body = self.objects.get(key, (b"", {}))[0]
        allowed = key in self.objects and first < len(body) and first <= last
        if key in self.objects and last < first:
            return  # such a range is ignored
        span = {"Bucket": self.bucket, "Key": key, "Range": f"bytes={first}-{last}"}
        got = attempt(lambda: self.s3.get_object(**span)["Body"].read())
        assert got == (body[first : last + 1] if allowed else None)

    @invariant()
    def every_object_is_there(self) -> None:
        if not hasattr(self, "objects"):
            return
        listed = self.s3.list_objects_v2(Bucket=self.bucket).get("Contents", [])
        assert [row["Key"] for row in listed] == sorted(self.objects, key=str.encode)
        for key, (body, metadata) in self.objects.items():
            got = self.s3.get_object(Bucket=self.bucket, Key=key)
            assert (got["Body"].read(), got["Metadata"]) == (body, metadata)


def run_model(examples: int, steps: int) -> None:
    """Run the machine against a server of its own."""
    with tempfile.TemporaryDirectory() as folder:
        options = ServerOptions(durable=False, s3_key_file=str(Path(folder) / "s3.key"))
        with start_server(Path(folder) / "lake", options=options) as server:
            started = server.started
            server.site.repositories.create("analytics")
            client = boto3.client(
                "s3",
                endpoint_url=started.endpoint,
                aws_access_key_id=started.access_key,
                aws_secret_access_key=started.secret,
                region_name="us-east-1",
                config=Config(signature_version="s3v4", s3={"addressing_style": "path"}, retries={"max_attempts": 1}),
            )
            machine = type("Machine", (GatewayAsDictionary,), {"server": server, "s3": client})
            limits = settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            )
            case = machine.TestCase()
            case.settings = limits
            case.runTest()
            client.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_gateway_is_a_dictionary() -> None:
    """Puts, conditions, copies, parts, deletions, commits and ranges do to a branch what they do to a dictionary."""
    run_model(examples=3, steps=8)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_gateway_is_a_dictionary_for_long() -> None:
    """The same, for many more histories."""
    run_model(examples=60, steps=30)
