"""The report as one HTML page, for light and dark mode and for phones. No script, font or image; it fetches nothing.

Owns: the words of the page. Pure: `ReportFacts` -> text. Markup comes from `page.html.jinja`, shapes from `plots`,
styles from `page.css`, which is embedded in the page.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from statistics import median
from typing import Any

from lakebed.pipeline.model import StepRecord
from lakebed.pipeline.page_parts import are, bytes_text, card, draw, time_text, utc_text
from lakebed.pipeline.page_table import holds_now, is_unread, table_sections, tag_holds
from lakebed.pipeline.report_model import Check, ReportFacts, RunFacts, Stop, TagFacts
from lakebed.texts import format_count

_DROPPED_MAX = 10
_MARKS = {"bad": "✗", "open": "!", "good": "✓", "note": "·"}
"""The marks of statements, in the order in which a reader needs them."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A sentence at the top of the page, with a key of `_MARKS`."""

    mark: str
    sentence: str


def render(facts: ReportFacts) -> str:
    """The whole page."""
    style = resources.files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    tables = [table for table in facts.tables if table.versions]
    sections = [section for table in tables for section in table_sections(table, alone=len(tables) == 1)]
    statements = [(statement.mark, _MARKS[statement.mark], statement.sentence) for statement in state_outcome(facts)]
    generated = datetime.datetime.fromtimestamp(facts.generated_ms / 1000, datetime.UTC)
    page = draw(
        "page",
        facts.title,
        style,
        draw("head", facts.title, statements),
        _tiles(facts),
        [*sections, *_checks(facts.checks), _runs(facts.runs)],
        f"{generated:%d %B %Y, %H:%M}",
        facts.lake,
    )
    return str(page)


# ---- the top


def state_outcome(facts: ReportFacts) -> list[Statement]:
    """Return the sentences at the top of the page, each with its own mark: what needs attention first.

    Only ``good`` stands first when everything is well as of this report: every run is complete or was continued by a
    later one, no stop is left, and every tag with a fingerprint was read or checked for it.
    """
    statements = [*_state_tags(facts), *_state_runs(facts.runs)]
    if facts.runs and not statements:
        statements.append(Statement("good", "All steps are done."))
    expired = sum(int(expiry["snapshots_expired"]) for table in facts.tables for expiry in table.expiries)
    freed = sum(_bytes_freed(expiry) for table in facts.tables for expiry in table.expiries)
    if expired:
        given_back = f", which gave back {bytes_text(freed)}" if freed > 0 else ""
        statements.append(Statement("note", f"{format_count(expired, 'snapshot')} expired{given_back}."))
    return sorted(statements, key=lambda statement: list(_MARKS).index(statement.mark))


def _state_tags(facts: ReportFacts) -> list[Statement]:
    tags = [tag for table in facts.tables for tag in table.tags]
    wrong = [
        tag.tag if holds_now(tag) is False else f"{tag.tag} (read on {utc_text(tag.read_ms)})"
        for tag in tags
        if tag_holds(tag) is False
    ]
    wrong += [check.subject for check in facts.checks if not check.held and check.tag is None]
    if wrong:
        return [Statement("bad", f"Something does not hold: {', '.join(wrong)}.")]
    statements = []
    if tags and all(holds_now(tag) for tag in tags):
        which = "The tag" if len(tags) == 1 else f"Every one of the {len(tags):,} tags"
        statements.append(Statement("good", f"{which} {_describe_hold(tags)}."))
    unread_tags = [tag for tag in tags if is_unread(tag)]
    if unread_tags:
        statements.append(Statement("open", _unread_words(unread_tags, len(tags))))
    return statements


def _state_runs(runs: Sequence[RunFacts]) -> list[Statement]:
    if not runs:
        return [Statement("note", "No pipeline has run in this lake.")]
    statements = []
    failed_runs = [run for run in runs if run.status.state == "failed" and run.continued_by is None]
    refused_runs = [run for run in failed_runs if run.stops and _is_refusal(run.stops[-1])]
    broken_count = len(failed_runs) - len(refused_runs)
    if broken_count:
        sentence = (
            f"{format_count(broken_count, 'run')} stopped by an error and {are(broken_count)} not finished: see Runs."
        )
        statements.append(Statement("bad", sentence))
    if refused_runs:
        # Refused rows are expected; any other error needs attention.
        sentence = (
            f"{format_count(len(refused_runs), 'run')} stopped because of refused rows "
            f"and {are(len(refused_runs))} not finished: see Runs."
        )
        statements.append(Statement("open", sentence))
    unfinished = [
        run for run in runs if run.status.state == "unfinished" and not run.is_writing and run.continued_by is None
    ]
    if unfinished:
        sentence = f"{format_count(len(unfinished), 'run')} {are(len(unfinished))} not complete: running, or killed."
        statements.append(Statement("open", sentence))
    continued = [run for run in runs if run.continued_by is not None]
    if continued:
        sentence = (
            f"{format_count(len(continued), 'run')} {are(len(continued))} not complete; a later run of the pipeline "
            f"continued in {'its' if len(continued) == 1 else 'their'} place."
        )
        # It is unknown whether refused rows came in with the run that continued.
        is_open = any(run.stops and _is_refusal(run.stops[-1]) for run in continued)
        statements.append(Statement("open" if is_open else "good", sentence))
    return statements


def _is_refusal(stop: Stop) -> bool:
    return stop.bad_load or stop.is_repeated_increment


def _unread_words(unread_tags: Sequence[TagFacts], count: int) -> str:
    """Describe tags that were not read for this report: when they were last read, and the result."""
    times = [tag.read_ms for tag in unread_tags if tag.read_ms is not None]
    part = "" if len(unread_tags) == count else f"{len(unread_tags):,} of "
    which = "the tag" if count == 1 else f"{part}the {count:,} tags"
    if not times:
        return f"This report did not read {which} again."
    when = (
        f"on {utc_text(times[0])}"
        if min(times) == max(times)
        else f"from {utc_text(min(times))} to {utc_text(max(times))}"
    )
    if len(times) < len(unread_tags):
        return f"This report did not read {which} again; {len(times):,} matched when last read {when}."
    pronoun, verb = ("it", "was") if len(unread_tags) == 1 else ("they", "were")
    return f"This report did not read {which} again: {pronoun} {verb} last read {when}, then {pronoun} matched."


def _describe_hold(tags: Sequence[TagFacts]) -> str:
    reads = [tag.read_now and tag.reads_same for tag in tags]
    if all(reads):
        return "reads as it did when it was tagged"
    return "holds what was checked" if any(reads) else "agrees with what it was checked against"


def _bytes_freed(expiry: Mapping[str, Any]) -> int:
    return max(int(expiry["disk_bytes_before"]) - int(expiry["disk_bytes_after"]), 0)


def _tiles(facts: ReportFacts) -> str:
    versions = [version for table in facts.tables for version in table.versions]
    tags = [tag for table in facts.tables for tag in table.tags]
    merges = [version for version in versions if version.verb == "merge" and not version.rolled_back]
    tiles: list[tuple[str, str, str]] = []

    def add(count: int, noun: str, verb: str, more: str) -> None:
        number, _, words = format_count(count, noun).partition(" ")
        tiles.append((number, f"{words} {verb}".rstrip(), more))

    if merges:
        add(len(merges), "increment", "merged", format_count(sum(version.rows for version in merges), "row"))
    add(sum(table.rows for table in facts.tables), "row", "now", f"in {format_count(len(facts.tables), 'table')}")
    add(sum(version.alive for version in versions), "snapshot", "kept", f"of {len(versions):,} committed")
    if tags:
        tiles.append(_tag_tile(tags))
    given_back = [(sum(map(_bytes_freed, table.expiries)), table.expiries) for table in facts.tables]
    freed = sum(size for size, _ in given_back)
    if freed:
        # Each byte once: freed, or left after the last expiry.
        held_ever = sum(size + int(expiries[-1]["disk_bytes_after"]) for size, expiries in given_back if expiries)
        freed_text = f"{bytes_text(freed)} of {bytes_text(held_ever)}"
        tiles.append((_percent(freed / held_ever), "of the space given back", freed_text))
    bad_loads = {(run.status.run_id, stop.step) for run in facts.runs for stop in run.stops if stop.bad_load}
    if bad_loads:
        repaired_runs = {
            (run.status.run_id, stop.step)
            for run in facts.runs
            for stop in run.stops
            if stop.bad_load and stop.repaired_ms is not None
        }
        later = f"{len(repaired_runs):,} repaired later" if repaired_runs else "not repaired by its run"
        add(len(bad_loads), "bad load", "stopped", later)
    repeated_runs = {
        (run.status.run_id, stop.step) for run in facts.runs for stop in run.stops if stop.is_repeated_increment
    }
    if repeated_runs:
        add(len(repeated_runs), "repeated increment", "refused", "merged already: see the runs")
    dropped_counts = [_count_dropped(run) for run in facts.runs]
    if any(dropped_counts):
        rows = sum(sum(counts.values()) for counts in dropped_counts)
        add(rows, "bad row", "dropped", f"by {format_count(sum(map(len, dropped_counts)), 'step')}: see the runs")
    other_stops = sum(not _is_refusal(stop) for run in facts.runs for stop in run.stops)
    if other_stops:
        add(other_stops, "other stop", "", "by an error: see the runs")
    return draw("tiles", [(number, _size_class(number), label, detail) for number, label, detail in tiles])


def _tag_tile(tags: Sequence[TagFacts]) -> tuple[str, str, str]:
    match_count = sum(holds_now(tag) is True for tag in tags)
    word = "tag" if len(tags) == 1 else "tags"
    if match_count:
        return f"{match_count:,}/{len(tags):,}", f"{word} verified", "for this report"
    was_not_read = any(is_unread(tag) for tag in tags)
    return f"{len(tags):,}", word, "not read for this report" if was_not_read else "each pins a version"


def _size_class(number: str) -> str:
    """Return the class of a number's size: long numbers are smaller, to fit their card."""
    return "" if len(number) <= 6 else "long" if len(number) <= 9 else "longer"


def _percent(share: float) -> str:
    """Format a share: ``0.04 %`` keeps a significant digit."""
    percent = 100 * share
    return (
        f"{percent:.0f} %"
        if percent >= 10 or percent == 0
        else f"{percent:.1g} %"
        if percent < 1
        else f"{percent:.1f} %"
    )


# ---- checks and runs


def _checks(checks: Sequence[Check]) -> list[str]:
    other_checks = [check for check in checks if check.tag is None]
    return [card("Checks", "", draw("checks", other_checks))] if other_checks else []


def _runs(runs: Sequence[RunFacts]) -> str:
    parts = []
    for run in runs:
        status = run.status
        state = {"complete": "complete", "failed": "stopped", "unfinished": "not complete"}[status.state]
        state = "this report is a step of it" if run.is_writing else state
        steps = [step for step in run.steps if not step.carried_from]
        carried_count = len(run.steps) - len(steps)
        seconds = f"{sum(step.seconds for step in steps):.1f} s"
        progress_text = f"{len(steps):,} of {format_count(status.steps_total, 'step')} done in {seconds}"
        progress_text += f", {carried_count:,} taken over from earlier runs" if carried_count else ""
        progress_text += "" if status.attempts == 1 else f", {status.attempts:,} calls"
        times = time_text(status.started_ms)
        if status.ended_ms is not None and not run.is_writing:
            times += f" to {time_text(status.ended_ms, since=status.started_ms)}"
        css = "writing" if run.is_writing else status.state
        stops = [
            (time_text(stop.ended_ms), stop.sentence, None if stop.repaired_ms is None else time_text(stop.repaired_ms))
            for stop in run.stops
        ]
        about = (status.pipeline, css, state, times, progress_text, status.run_id, run.continued_by)
        parts.append(draw("run", *about, stops, _describe_dropped(run), _verbs(steps)))
    return card("Runs", "Every step is in the run ledger; running a pipeline again skips what is done.", *parts)


def _count_dropped(run: RunFacts) -> dict[str, int]:
    counts = {step.name: int(step.metrics.get("rows_dropped", 0)) for step in run.steps if not step.carried_from}
    return {name: count for name, count in counts.items() if count}


def _describe_dropped(run: RunFacts) -> str:
    """Describe the bad rows that were left out, by the steps that left out most of them."""
    dropped_counts = sorted(_count_dropped(run).items(), key=lambda item: -item[1])
    if not dropped_counts:
        return ""
    total = sum(count for _, count in dropped_counts)
    words = [f"{count:,} by '{name}'" for name, count in dropped_counts[:_DROPPED_MAX]]
    if len(dropped_counts) > _DROPPED_MAX:
        rest_count = sum(count for _, count in dropped_counts[_DROPPED_MAX:])
        words.append(f"{rest_count:,} by {format_count(len(dropped_counts) - _DROPPED_MAX, 'other step')}")
    verb = "was" if total == 1 else "were"
    return f"{format_count(total, 'bad row')} {verb} dropped: {', '.join(words)}."


def _verbs(steps: Sequence[StepRecord]) -> str:
    by_verb: dict[str, list[StepRecord]] = {}
    for step in steps:
        by_verb.setdefault(step.verb, []).append(step)
    if not by_verb:
        return ""
    rows = [
        (
            verb,
            [
                ("steps", f"{len(verb_steps):,}"),
                ("rows", draw("rows", _total(verb_steps, "rows"), _describe_uncounted(verb_steps))),
                ("files added", _total(verb_steps, "files_added")),
                ("seconds", f"{sum(step.seconds for step in verb_steps):.1f}"),
                ("median", f"{1000 * median(step.seconds for step in verb_steps):,.0f} ms"),
            ],
        )
        for verb, verb_steps in by_verb.items()
    ]
    return draw("grid", ("step", "times", "rows", "files added", "seconds", "median"), rows, False)


def _total(steps: Sequence[StepRecord], metric: str) -> str:
    values = [int(step.metrics[metric]) for step in steps if metric in step.metrics]
    return f"{sum(values):,}" if values else "–"


def _describe_uncounted(steps: Sequence[StepRecord]) -> str:
    """Say how many steps of a kind counted no rows, when others of it did."""
    # Such as an ingest of Parquet as a view. A compaction that rewrote nothing counts as none.
    uncounted = sum("rows" not in step.metrics for step in steps if step.verb != "compact")
    return f"{format_count(uncounted, 'step')} not counted" if 0 < uncounted < len(steps) else ""
