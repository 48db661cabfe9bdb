"""Options: defaults, parsing, refusals, and tolerance of other clients' tables."""

from __future__ import annotations

import pytest

from lakebed.errors import InvalidRequest
from lakebed.table.model import options
from lakebed.table.model.options import TableOptions, check_options, check_writable


def test_defaults_and_values() -> None:
    """An option is its default until the table says otherwise; units are read."""
    empty, given = TableOptions(), TableOptions({"snapshot.time-retained": "2 d", "manifest.target-file-size": "1 mb"})
    assert empty.get(options.SNAPSHOT_TIME_RETAINED) == 3_600_000
    assert given.get(options.SNAPSHOT_TIME_RETAINED) == 172_800_000
    assert given.get(options.MANIFEST_TARGET_FILE_SIZE) == 1 << 20
    assert given.is_set(options.SNAPSHOT_TIME_RETAINED)
    assert not empty.is_set(options.SNAPSHOT_TIME_RETAINED)
    assert TableOptions({"bucket-key": " a, b ,"}).get(options.BUCKET_KEY) == ("a", "b")


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("buckets", "1", "did you mean 'bucket'"),
        ("zzzz", "1", "not known"),
        ("bucket", "0", "positive number"),
        ("bucket", "many", "not a whole number"),
        ("write-only", "yes", "neither 'true' nor 'false'"),
        ("merge-engine", "dedup", "not one of deduplicate"),
        ("changelog-producer", "lookup", "not supported"),
        ("file.format", "orc", "not supported"),
        ("snapshot.time-retained", "soon", "not a duration"),
        ("target-file-size", "big", "not a size"),
        ("snapshot.num-retained.min", "0", "not between"),
        ("snapshot.num-retained.min", "9" * 5000, "not a whole number"),
        ("tag.create-time", "25:00", "time of day"),
        ("tag.creation-period", "1 ms", "whole seconds"),
        ("metadata.stats-mode", "some", "truncate"),
        ("metadata.stats-mode", "truncate(0)", "truncate"),
        ("data-file.prefix", "../", "file name"),
    ],
)
def test_refusals(name: str, text: str, sentence: str) -> None:
    """What cannot be kept is refused, naming option, value and what is possible."""
    with pytest.raises(InvalidRequest, match=sentence) as caught:
        check_options({name: text})
    assert caught.value.facts["option"] == name


@pytest.mark.parametrize("name", ["fields.price.aggregate-function", "parquet.enable.dictionary", "orc.stripe.size"])
def test_column_options_are_refused(name: str) -> None:
    """Options of columns and file formats, of which lakebed acts on none, are not accepted in silence."""
    with pytest.raises(InvalidRequest, match="not supported by this version of lakebed: "):
        check_options({name: "true"})


def test_refused_options_exist_and_may_have_their_default() -> None:
    """An option that only other clients implement may be set to its default, and does not stop writing."""
    check_options({"commit.force-compact": "false", "scan.mode": "default", "branch": "main"})
    check_writable({"commit.force-compact": "true", "scan.tag-name": "x"})


def test_foreign_tables() -> None:
    """Options lakebed does not know stop neither reading nor writing; one it cannot keep stops writing only."""
    foreign = {"some.new-option": "x", "changelog-producer": "lookup"}
    assert TableOptions(foreign).get(options.BUCKET) == -1
    check_writable({"some.new-option": "x"})
    with pytest.raises(InvalidRequest, match="lookup"):
        check_writable(foreign)


def test_unreadable_value_speaks_when_asked() -> None:
    """A foreign table's unreadable option is an error only where it is needed."""
    table = TableOptions({"snapshot.time-retained": "soon"})
    assert table.get(options.BUCKET) == -1
    with pytest.raises(InvalidRequest, match=r"snapshot\.time-retained"):
        table.get(options.SNAPSHOT_TIME_RETAINED)


def test_every_default_is_documented() -> None:
    """Every option has a sentence that says what it does."""
    assert all(option.doc.endswith((".", ":")) for option in options.OPTIONS.values())


def test_properties_of_the_user_are_kept_and_mistakes_are_not() -> None:
    """A first part that is a word of the user's own; not one that is similar to an option's, or another format's."""
    check_options({"team.contact": "x", "com.example.owner": "y", "quality.level.min": "3"})
    for name in (
        "snapshto.num-retained.max",
        "snapshots.num-retained.max",
        "field.a.aggregate-function",
        "pipeline.x",
        "delta.appendOnly",
        "write.format.default",
        "contact",
        "team.",
        ".team",
        " .x",
    ):
        with pytest.raises(InvalidRequest, match="is not known"):
            check_options({name: "1"})
    with pytest.raises(InvalidRequest, match=r"begins with a word of your own and a dot, such as 'team.contact'"):
        check_options({"contact": "1"})
