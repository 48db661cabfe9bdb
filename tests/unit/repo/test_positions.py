"""Positions in the log: their form, and how many are kept."""

from __future__ import annotations

import pytest

from lakebed.errors import InvalidRequest
from lakebed.repo.model.positions import format_position, parse_position
from worlds.errors import raises

IDS = [f"{number:064x}" for number in range(10_000)]


@pytest.mark.parametrize("count", [1, 2, 64])
def test_a_position_is_read_as_it_was_written(count: int) -> None:
    """It begins with the last commit, and names all that wait."""
    text = format_position(IDS[0], IDS[1 : count + 1])
    assert text.startswith(IDS[0])
    assert parse_position(text) == (IDS[0], IDS[1 : count + 1])
    assert len(text) < 3_000


@pytest.mark.parametrize("count", [0, 65, 9_999])
def test_a_position_of_too_many_commits_is_the_last_one(count: int) -> None:
    """It fits into a URL all the same, and is read as a commit's id alone."""
    assert format_position(IDS[0], IDS[1 : count + 1]) == IDS[0]
    assert parse_position(IDS[0]) == (IDS[0], None)


@pytest.mark.parametrize("text", ["a.", "a.b", "a." + "A" * 44, "a.\u00e9", "." + "A" * (43 * 65), "a. "])
def test_what_is_no_position_is_refused(text: str) -> None:
    """With a sentence, whatever it is."""
    with raises(InvalidRequest, "invalid_position"):
        parse_position(text)
