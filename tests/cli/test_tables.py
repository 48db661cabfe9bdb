"""lakebed table create, describe, drop, columns and options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lakebed
from lakebed.cli import exits

Cli = Callable[..., Any]


def test_create_makes_the_lake_too(cli: Cli, tmp_path: Path) -> None:
    """The first table makes its lake; its columns, key, partitions and options are those named."""
    made = cli(
        *("table", "create", tmp_path / "new", "db.t", "-c", "id BIGINT NOT NULL", "-c", "day DATE"),
        *("-c", "price DECIMAL(10, 2)", "--primary-key", "day,id", "--partition-by", "day", "-o", "bucket=2", "--json"),
    ).json
    assert made["table"] == "db.t"
    assert [(column["name"], column["type"], column["nullable"]) for column in made["columns"]] == [
        ("id", "BIGINT", False),
        ("day", "DATE", False),
        ("price", "DECIMAL(10, 2)", True),
    ]
    assert (made["primary_keys"], made["partition_keys"]) == (["day", "id"], ["day"])
    assert made["options"]["bucket"] == "2"
    assert lakebed.open(str(tmp_path / "new"), create=False).tables() == ["db.t"]


def test_a_mistake_makes_no_lake(cli: Cli, tmp_path: Path) -> None:
    """What cannot be understood is refused before anything is written."""
    for words in ([], ["-c", "id"], ["-c", "id NUMBER"], ["-c", "id INT", "-o", "bucket"], ["--like", "nosuch.csv"]):
        assert cli("table", "create", tmp_path / "new", "t", *words).code in (exits.USAGE, exits.NOT_FOUND)
        assert not (tmp_path / "new").exists()


def test_create_like_a_file(cli: Cli, lake: str, tmp_path: Path) -> None:
    """--like takes the columns of a file."""
    (tmp_path / "a.csv").write_text("id,name\n1,x\n")
    made = cli("table", "create", lake, "like", "--like", tmp_path / "a.csv", "--json").json
    assert [(column["name"], column["type"]) for column in made["columns"]] == [("id", "BIGINT"), ("name", "STRING")]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("`a word` INT", "a word"),
        ('"a ""word""" INT NOT NULL', 'a "word"'),
        ("`select` INT", "select"),
        ("it's INT", "it's"),
    ],
)
def test_create_takes_names_in_quotes(cli: Cli, lake: str, text: str, name: str) -> None:
    """As filters do; a name of one word needs none."""
    assert cli("table", "create", lake, "quoted", "--column", text).code == exits.OK
    (column,) = cli("table", "describe", lake, "quoted", "--json").json["columns"]
    assert (column["name"], column["type"].split()[0]) == (name, "INT")


def test_create_refuses_a_key_whose_name_a_list_cannot_say(cli: Cli, lake: str) -> None:
    """A column with a comma in its name is not taken for the columns of its parts."""
    for setting in ("--primary-key", "--partition-by"):
        columns = [part for name in ("a,b", "a", "b", "v") for part in ("-c", f"{name} BIGINT")]
        answer = cli("table", "create", lake, "new", *columns, setting, "a,b", "--json")
        assert answer.code == exits.USAGE
        assert "cannot name the column" in answer.error["message"]


def test_create_if_not_exists(cli: Cli, lake: str) -> None:
    """--if-not-exists is content with the table that is there."""
    assert cli("table", "create", lake, "flights", "-c", "id BIGINT", "--if-not-exists").code == exits.OK


def test_create_says_first_that_the_table_is_there(cli: Cli, lake: str) -> None:
    """Without columns, which are named when there is none, a table that exists is what is wrong."""
    answer = cli("table", "create", lake, "flights", "--json")
    assert (answer.code, answer.error["kind"]) == (exits.CONFLICT, "table_exists")
    assert cli("table", "create", lake, "new", "--json").error["kind"] == "no_columns"


def test_describe(cli: Cli, lake: str) -> None:
    """Columns, keys, newest version and number of tags."""
    shown = cli("table", "describe", lake, "flights", "--json").json
    assert [column["name"] for column in shown["columns"]] == ["id", "carrier", "delay"]
    assert shown["newest"]["snapshot"] == 2
    assert shown["tags"] == 1
    assert "primary key" in cli("table", "describe", lake, "flights").out


def test_drop_refuses_a_pinned_table(cli: Cli, lake: str, unchanged: Callable[[], bool]) -> None:
    """A table with tags is not dropped; neither is one in a dry run."""
    answer = cli("table", "drop", lake, "flights", "--json")
    assert answer.code == exits.USAGE
    assert answer.error["kind"] == "table_pinned"
    assert cli("table", "drop", lake, "flights", "--force", "--dry-run", "--json").json["deleted"] > 0
    assert unchanged()


def test_drop(cli: Cli, lake: str) -> None:
    """A dropped table is gone with all its files; --force drops a pinned one."""
    assert cli("table", "drop", lake, "db.events").code == exits.OK
    assert cli("table", "drop", lake, "flights", "--force").code == exits.OK
    assert cli("ls", lake, "--json").json == []
    assert sorted(path.name for path in Path(lake).rglob("*") if path.is_file()) == ["lakebed.json", "reserve"]


def test_columns_and_options_change(cli: Cli, lake: str) -> None:
    """Columns are added, renamed, widened and dropped, options set and unset; rows follow."""
    table = ("table",)
    assert cli(*table, "add-column", lake, "flights", "gate", "INT", "--comment", "where").code == exits.OK
    assert cli(*table, "widen-column", lake, "flights", "gate", "BIGINT").code == exits.OK
    assert cli(*table, "rename-column", lake, "flights", "gate", "exit").code == exits.OK
    assert cli(*table, "drop-column", lake, "flights", "delay").code == exits.OK
    changed = cli(*table, "set-option", lake, "flights", "snapshot.num-retained.max=7", "--json").json
    assert changed["options"]["snapshot.num-retained.max"] == "7"
    changed = cli(*table, "unset-option", lake, "flights", "snapshot.num-retained.max", "--json").json
    assert "snapshot.num-retained.max" not in changed["options"]
    assert [(column["name"], column["type"]) for column in changed["columns"]][1:] == [
        ("carrier", "STRING"),
        ("exit", "BIGINT"),
    ]
    assert cli(*table, "read", lake, "flights", "--limit", "1", "--json").json[0]["exit"] is None
