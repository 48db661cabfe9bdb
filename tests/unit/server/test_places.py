"""Names of places: every spelling of one place has the same names."""

from __future__ import annotations

import pytest

from lakebed.server.places import place_names


@pytest.mark.parametrize(
    ("texts", "names"),
    [
        (
            (
                "a",
                "./a",
                "b/../a",
                "local://a",
                "/srv/lake/a",
                "/srv//lake/./a",
                "file:/srv/lake/a",
                "local:///srv/lake/a",
            ),
            ("file:///srv/lake/a", "local:///srv/lake/a", "local://a", "a"),
        ),
        (("../other/", "local://../other/", "/srv/other/"), ("file:///srv/other/", "local:///srv/other/")),
        (("s3://b/a", "s3a://b/a"), ("s3://b/a",)),
        (("gs://b/", "gcs://b/"), ("gs://b/",)),
        (("/", "file:///", "local:///", "/srv/.."), ("file:///", "local:///")),
    ],
)
def test_all_spellings_have_the_same_names(texts: tuple[str, ...], names: tuple[str, ...]) -> None:
    """A folder with its final slash, so that a pattern that ends in one matches what is below it alone."""
    for text in texts:
        assert place_names(text, root_url="file:///srv/lake") == names, text
