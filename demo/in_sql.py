"""The story in SQL: the lake as a catalog of Spark, after expiry has deleted what no tag holds.

Owns: the statements, and their checks against the published CSV. Every statement is printed as it is run.
"""

from __future__ import annotations

import calendar
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from demo.truth import Truth

__all__ = ["SqlStory", "tell_in_sql"]

FLIGHTS = "lake.default.flights"
ROUTES = "lake.default.routes"

_ROUTES_OF = (
    "SELECT origin, dest, count(*) AS flights, avg(arr_delay) AS late "
    f"FROM {FLIGHTS} VERSION AS OF '{{}}' GROUP BY origin, dest"
)


@dataclass(frozen=True, slots=True)
class SqlStory:
    """What the statements are about."""

    spark: SparkSession
    """With the catalog ``lake``."""
    truth: Truth
    months: Sequence[str]
    say: Callable[[str], None]
    check: Callable[[str, bool, str], None]

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """Print a statement, run it, and return its rows."""
        self.say(f"[dim]{statement}[/]")
        return [tuple(row) for row in self.spark.sql(statement).collect()]

    def after(self, month: str) -> pd.DataFrame:
        """The flights as they were known at the end of a month."""
        return self.truth.after(f"{month}-{calendar.monthrange(int(month[:4]), int(month[5:]))[1]:02d}")


def tell_in_sql(story: SqlStory) -> None:
    """Travel, keep a table of routes by CTAS and MERGE, tag it, expire it, and travel again."""
    travel(story)
    refuse(story)
    routes(story)


def travel(story: SqlStory) -> None:
    """Every tag in one query of the system table, and the first of them, which expiry has left nothing else of."""
    first = story.months[0]
    tags = story.sql(f"SELECT tag_name, record_count FROM {FLIGHTS}.tags ORDER BY tag_name")
    [(count, late)] = story.sql(f"SELECT count(*), sum(arr_delay) FROM {FLIGHTS} VERSION AS OF '{first}'")
    known = story.after(first)
    story.check(
        f"SQL at the tag {first}, after expiry:",
        [name for name, _ in tags] == list(story.months)
        and (count, late) == (len(known), int(known["arr_delay"].sum())),
        f"{count:,} flights, {late:,} minutes late in all.",
    )
    story.say(f"{count:,} flights at the tag {first}, {late:,} minutes late in all.")


def refuse(story: SqlStory) -> None:
    """A version that has expired is an error of analysis, with what there is."""
    statement = f"SELECT count(*) FROM {FLIGHTS} VERSION AS OF 40"
    try:
        story.sql(statement)
    except AnalysisException as error:
        sentence = str(error).partition("\n")[0]
        story.say(f"[yellow]{sentence}[/]")
        held = "no snapshot 40" in sentence
    else:
        sentence, held = "it was read.", False
    story.check("SQL refuses an expired snapshot in a sentence:", held, sentence)


def routes(story: SqlStory) -> None:
    """A table of routes as of the first month, merged up to the last, and read at its tag after its own expiry."""
    first, last = story.months[0], story.months[-1]
    story.sql(f"CREATE TABLE {ROUTES} TBLPROPERTIES ('primary-key' = 'origin,dest') AS {_ROUTES_OF.format(first)}")
    story.sql(f"CALL lake.sys.create_tag(table => 'default.routes', tag => '{first}')")
    story.sql(
        f"MERGE INTO {ROUTES} t USING ({_ROUTES_OF.format(last)}) s ON t.origin = s.origin AND t.dest = s.dest "
        "WHEN MATCHED AND s.flights > t.flights THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    story.sql("CALL lake.sys.expire_snapshots(table => 'default.routes', retain_max => 1, retain_min => 1)")
    found = {
        month: story.sql(f"SELECT * FROM {ROUTES}{when}")
        for month, when in (
            (first, f" VERSION AS OF '{first}'"),
            (last, ""),
        )
    }
    expected = {month: known_routes(story.after(month)) for month in (first, last)}
    # A route that lost flights by withdrawals keeps the row of the first month, as the MERGE says.
    for route, row in expected[first].items():
        if expected[last].get(route, (0,))[0] <= row[0]:
            expected[last][route] = row
    held = all(same_routes(found[month], expected[month]) for month in (first, last))
    story.check(
        f"CREATE TABLE AS, MERGE and a tag of {len(found[first])} routes:",
        held,
        f"{len(found[last])} routes in {last}; those of {first} are still read at their tag, after expiry.",
    )
    story.say(f"{len(found[first])} routes in {first}, {len(found[last])} in {last}; both can be read.")


def known_routes(flights: pd.DataFrame) -> dict[tuple[str, str], tuple[int, float]]:
    """Flights and mean delay of each route, by pandas."""
    grouped = flights.groupby(["origin", "dest"])["arr_delay"].agg(["size", "mean"])
    return {
        (str(origin), str(dest)): (int(count), float("nan") if pd.isna(mean) else float(mean))
        for (origin, dest), count, mean in zip(grouped.index, grouped["size"], grouped["mean"], strict=True)
    }


def same_routes(rows: Sequence[tuple[Any, ...]], expected: dict[tuple[str, str], tuple[int, float]]) -> bool:
    """Whether rows of the table are these routes; a mean that is not known is null."""
    there = {(origin, dest): (flights, late) for origin, dest, flights, late in rows}
    return there.keys() == expected.keys() and all(
        there[route][0] == flights and (there[route][1] is None if late != late else abs(there[route][1] - late) < 1e-6)
        for route, (flights, late) in expected.items()
    )
