"""External paths: URLs as the Java client prints them, the folders of hashes, and the marks of files."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from lakebed.errors import InvalidRequest
from lakebed.objects.open import open_store, place_of
from lakebed.table.files.external import ENTROPY, Targets, entropy_folders, is_marked
from lakebed.table.model.external_paths import ExternalPaths

PATHS = "data-file.external-paths"


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        ("file:///tmp/a b//c/", "file:/tmp/a b/c"),
        ("file:/tmp/100%", "file:/tmp/100%"),
        ("s3://bucket", "s3://bucket"),
        ("s3a://bucket//x///y/", "s3a://bucket/x/y"),
        ("gs://b/\u00e9", "gs://b/\u00e9"),
    ],
)
def test_roots_are_printed_as_java_does(given: str, printed: str) -> None:
    """A root has one scheme, single slashes and no final one; nothing is decoded."""
    paths = ExternalPaths.of({PATHS: f" {given} ", f"{PATHS}.strategy": "Round-Robin"})
    assert paths.roots == (printed,)


@pytest.mark.parametrize(
    "given",
    [
        "/tmp/a",
        "tmp",
        "s3:bucket",
        "oss://bucket/a",
        "s3://",
        "file://host/a",
        "file:/a/../b",
        "s3://b/./c",
        "hdfs:///a",
    ],
)
def test_roots_that_cannot_be_used_are_refused(given: str) -> None:
    """A path without scheme, a storage that lakebed does not open, a host and dots are refused; names the option."""
    with pytest.raises(InvalidRequest, match=PATHS) as refused:
        ExternalPaths.of({PATHS: f"file:/fine,{given}", f"{PATHS}.strategy": "round-robin"})
    assert refused.value.kind == "invalid_option"


def test_without_a_strategy_or_a_path_files_stay_inside() -> None:
    """Either option alone changes nothing, as for the Java client."""
    assert ExternalPaths.of({PATHS: "no URL"}).roots == ()
    assert ExternalPaths.of({f"{PATHS}.strategy": "specific-fs"}).roots == ()


def test_folders_of_hashes_are_those_of_murmur() -> None:
    """The low 20 bits of Murmur3 (32 bit, seed 0): known values of the algorithm, for every length of tail."""
    known = {
        "": 0x0,
        "a": 0x3C2569B2,
        "ab": 0x9BBFD75F,
        "abc": 0xB3DD93FA,
        "abcd": 0x43ED676A,
        "Hello, world!": 0xC0363E43,
    }
    wanted = [f"{code & 0xFFFFF:020b}" for code in known.values()]
    assert [folders.replace("/", "") for folders in entropy_folders(list(known))] == wanted
    assert entropy_folders(["abc"]) == ["1101/1001/0011/11111010"]


@pytest.mark.parametrize("strategy", ["round-robin", ENTROPY])
def test_marks_are_of_one_table_and_one_place(strategy: str) -> None:
    """A file is marked where its writer put it, for its table only; not elsewhere, and not under another name."""
    store = open_store("memory://marks")
    paths = ExternalPaths(("memory://marks/a", "memory://marks/b"), strategy)
    targets = Targets(store, paths, owner="one", rng=random.Random(1))
    places = [targets.next_location("p=x/bucket-0", prefix="data-", number=number) for number in range(20)]
    urls = [place.url for place in places]
    assert is_marked(pa.array(urls), "one").all()
    assert not is_marked(pa.array(urls), "two").any()
    assert len(set(urls)) == 20
    assert {url.split("/")[3] for url in urls} == {"a", "b"}
    for place in places:
        place.store.put(place.path, b"x")
        result, path = place_of(store, place.url)
        assert bytes(result.get(path)) == b"x"
        assert place.url.endswith(f"/{place.name}")
    flipped = {"/a/": "/b/", "/b/": "/a/"}
    elsewhere = [
        *(url.replace("bucket-0", "bucket-1") for url in urls),
        *(url.replace(url[14:17], flipped[url[14:17]], 1) for url in urls),
        *(url.replace("data-", "data-0/") for url in urls),
        *(f"{url}.crc" for url in urls),
        *(url.replace("-8", "-4") for url in urls),
    ]
    assert not is_marked(pa.array(elsewhere), "one").any()
    assert is_marked(pa.array([], pa.string()), "one").tolist() == []
