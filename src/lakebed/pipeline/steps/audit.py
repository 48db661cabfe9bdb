"""``audit``: SQL expectations that must hold for an increment (or a table) before later steps run.

``every_row`` has predicates over one row. A row breaks a predicate that is false or NULL for it. ``overall`` has
predicates over all rows, with aggregates: ``count(*) > 0``. Metrics: ``rows``, ``expectations``. Idempotent: reads
only. All expectations are one Spark job; a broken one costs a second job, for its sample. Simple expectations about few
rows of this process that hold (see `..conditions`) are evaluated without Spark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lakebed.errors import Rejected
from lakebed.pipeline.context import RunContext
from lakebed.pipeline.keys import Key, StepKind
from lakebed.pipeline.model import PlannedStep
from lakebed.pipeline.source import SOURCE_KEYS, check_source, source_rows
from lakebed.texts import format_count

SAMPLE_ROWS = 3


@dataclass(frozen=True, slots=True)
class Broken:
    """One expectation that does not hold."""

    name: str
    predicate: str
    rows_broken: int | None
    """None: the expectation is about all rows together."""
    sample: tuple[Mapping[str, Any], ...] = ()
    """At most `SAMPLE_ROWS` whole rows."""

    def sentence(self, rows: int) -> str:
        """Return a sentence about the broken expectation, for a message."""
        if self.rows_broken is None:
            return f"'{self.name}' ({self.predicate}) does not hold for its {rows:,} rows"
        words = f"'{self.name}' ({self.predicate}) does not hold for {self.rows_broken:,} of {rows:,} rows"
        return words + (f", such as {_format_row(self.sample[0], self.predicate)}" if self.sample else "")


def run(step: PlannedStep, context: RunContext) -> dict[str, Any]:
    """Check every expectation in one pass.

    Raises `Rejected`: one or more do not hold; ``kind`` is ``audit_failed``, `facts` has ``rows`` and ``broken``.
    """
    every_row, overall = step.settings["every_row"], step.settings["overall"]
    source = source_rows(step, context)
    engine, location = context.engine(), context.location(step)
    row_count = engine.count_when_held(source, every_row=[*every_row.values()], overall=[*overall.values()])
    if row_count is not None:
        return {"rows": row_count, "expectations": len(every_row) + len(overall), "content": context.content(step)}
    for name, predicate in every_row.items():
        engine.check_predicate(source, predicate, f"expectation '{name}'", location=location)
    counts = [f"count_if(NOT coalesce(({predicate}), false))" for predicate in every_row.values()]
    holding = [f"coalesce(({predicate}), false)" for predicate in overall.values()]
    rows, *values = engine.one_row(source, ["count(*)", *counts, *holding], location=location)
    broken_rules = [
        Broken(
            name,
            predicate,
            count,
            tuple(engine.sample(source, f"NOT coalesce(({predicate}), false)", count=SAMPLE_ROWS, location=location)),
        )
        for (name, predicate), count in zip(every_row.items(), values, strict=False)
        if count
    ]
    broken_rules += [
        Broken(name, predicate, None)
        for (name, predicate), holds in zip(overall.items(), values[len(every_row) :], strict=True)
        if not holds
    ]
    if broken_rules:
        problems = "; ".join(expectation.sentence(rows) for expectation in broken_rules)
        raise Rejected(
            f"{context.location(step)}: {step.name} stopped the run: {problems}. Nothing after it was done.",
            kind="audit_failed",
            step=step.name,
            rows=rows,
            broken=tuple(broken_rules),
        )
    return {"rows": rows, "expectations": len(every_row) + len(overall), "content": context.content(step)}


def check(settings: Mapping[str, Any]) -> str | None:
    """Require a source and at least one expectation."""
    if not settings["every_row"] and not settings["overall"]:
        return "nothing is expected; give 'every_row' or 'overall' at least one 'name: predicate'."
    return check_source(settings)


def describe(metrics: Mapping[str, Any]) -> list[str]:
    """Return the numbers of rows and expectations."""
    count = metrics.get("expectations", 0)
    holds = "holds" if count == 1 else "hold"
    return [f"{format_count(metrics.get('rows', 0), 'row')}, {format_count(count, 'expectation')} {holds}"]


def _format_row(row: Mapping[str, Any], predicate: str) -> str:
    """Return the columns that the predicate names, otherwise the first few."""
    words = set(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", predicate))
    columns = [column for column in row if column in words] or list(row)[:4]
    return ", ".join(f"{column} = {row[column]}" for column in columns)


KIND = StepKind(
    name="audit",
    summary="stop the run when expectations do not hold",
    keys=(
        *SOURCE_KEYS,
        Key("every_row", "predicates", "predicates that must be true for every row", default={}),
        Key("overall", "predicates", "predicates over all rows together, such as `count(*) > 0`", default={}),
    ),
    run=run,
    check=check,
    describe=describe,
)
