"""Locations as users write them: URLs, folders and files of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakebed.errors import InvalidRequest
from lakebed.objects import open_store
from lakebed.objects.path import StoreUrl, local_path, parse_url
from worlds.errors import raises

NO_LOCATIONS = (
    *("", "s3:", "s3://", "s3:/", "s3:bucket", "s3:/bucket/lake", "s3:///lake", "S3://bucket", "s3a:", "s3a:bucket"),
    *("gs:", "gs://", "gs:bucket", "az://", "az:container", "memory:", "memory://", "memory:name", "http:", "http://h"),
    *("file:", "file:lake", "file://", "file://host/lake", "C:/lake", "c:lake", "postgresql:x", " s3://b", "./s3://b"),
)


@pytest.mark.parametrize("text", NO_LOCATIONS)
def test_what_begins_as_a_url_is_one_or_refused(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A URL without its bucket, as an unset variable makes it, opens no folder named after its scheme."""
    monkeypatch.chdir(tmp_path)
    for read in (parse_url, local_path, open_store):
        with raises(InvalidRequest, "invalid_url"):
            read(text)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["./s3:bucket", "12:30", "my lake:1", "_:x", "ä:x", "-s3:x", "a/s3:x"])
def test_a_name_with_a_colon_is_a_folder(text: str) -> None:
    """What does not begin with a scheme is a path, whatever characters follow."""
    assert parse_url(text) == StoreUrl("file", "", str(Path.cwd() / text))
    assert local_path(text) == text


@pytest.mark.parametrize("text", ["file:///a/b", "file:/a/b", "/a/b", "/a/b/"])
def test_a_folder_has_one_url(text: str) -> None:
    """The spellings of other clients name the same folder."""
    assert str(parse_url(text)) == "file:///a/b"
    assert local_path(text).removesuffix("/") == "/a/b"


def test_a_url_in_a_path_object_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`pathlib` removes a slash of a URL, and what is left is no folder."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidRequest):
        open_store(Path("s3://bucket/lake"))


@pytest.mark.parametrize(
    ("url", "folder"), [("/", "file:///x.kv"), ("/a/", "file:///a/x.kv"), ("s3://b/", "s3://b/x.kv")]
)
def test_a_folder_of_a_store_has_one_slash(url: str, folder: str) -> None:
    """The URL of a store in a lake has a single slash before its name, at the root too."""
    assert parse_url(url).join("x.kv") == folder


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("memory://other/x", {}),
        ("s3://bucket", {"aws_region": "none"}),
        ("gs://bucket/x", {}),
        ("az://container", {"azure_storage_account_name": "a", "azure_storage_account_key": "YQ=="}),
    ],
)
def test_a_bucket_is_opened_once_for_a_store(url: str, options: dict[str, str]) -> None:
    """Whatever its kind: each opening would have connections of its own. A view of the store shares them."""
    store = open_store(f"{url.partition(':')[0]}://first", storage_options=options or None)
    assert store.elsewhere(url) is store.elsewhere(url)
    assert store.sub("folder").elsewhere(url) is store.elsewhere(url)
