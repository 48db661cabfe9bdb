"""The report as one HTML page: no script, no font, no image, nothing fetched; light and dark; a phone will do.

Owns: what the page says and how it looks. Pure: `ReportFacts` -> text. Shapes come from `plots`, styles from `page.css`
beside this module, which is put into the page.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from html import escape
from importlib import resources
from statistics import median
from typing import Any

from lakebed.spark.pipeline.facts import Check, ReportFacts, RunFacts, Stop, TableFacts, TagFacts, VersionFacts
from lakebed.spark.pipeline.model import StepRecord
from lakebed.spark.pipeline.plots import Area, Bars, Flag, Line, Tick, plot, timeline

__all__ = ["render"]

_WRITTEN = {"merge": "merges: upserts and deletes", "ingest": "ingests", "append": "commits from outside of pipelines"}
_VERDICT_MARKS = {"good": "✓", "open": "…", "bad": "!"}
_FATES = {"alive": "kept", "gone": "expired", "undone": "rolled back"}
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def render(facts: ReportFacts) -> str:
    """The whole page."""
    style = resources.files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    shown = [table for table in facts.tables if table.versions]
    body = [
        _head(facts),
        _tiles(facts),
        *(_table_sections(table, alone=len(shown) == 1) for table in shown),
        _checks(facts.checks),
        _runs(facts.runs),
    ]
    generated = datetime.datetime.fromtimestamp(facts.generated_ms / 1000, datetime.UTC)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(facts.title)}</title><style>{style}</style></head><body><main>"
        f"{''.join(body)}"
        f"<footer>Written by lakebed on {generated:%d %B %Y, %H:%M} UTC from the run ledger of "
        f"<code>{escape(facts.lake)}</code>. The same facts as JSON lie beside this page.</footer>"
        "</main></body></html>\n"
    )


# ---- the top


def _head(facts: ReportFacts) -> str:
    css, sentence = verdict(facts)
    mark = _VERDICT_MARKS[css]
    return (
        f'<header><p class="brand">lakebed · pipeline report</p><h1>{escape(facts.title)}</h1>'
        f'<p class="verdict {css}"><span class="mark" aria-hidden="true">{mark}</span>'
        f"<span>{escape(sentence)}</span></p></header>"
    )


def verdict(facts: ReportFacts) -> tuple[str, str]:
    """A key of `_VERDICT_MARKS`, and the sentences to read first.

    ``good`` claims that everything is well as of this report: every run is complete, no stop is left, and every tag
    that has a fingerprint was read or checked for it.
    """
    tags = [tag for table in facts.tables for tag in table.tags]
    wrong = [
        tag.tag if _holds_now(tag) is False else f"{tag.tag} (read on {_utc(tag.read_ms)})"
        for tag in tags
        if _tag_holds(tag) is False
    ]
    wrong += [check.subject for check in facts.checks if not check.held and check.tag is None]
    if wrong:
        return "bad", f"Something does not hold: {', '.join(wrong)}."
    words = []
    if tags and all(_holds_now(tag) for tag in tags):
        words.append(f"{'The tag' if len(tags) == 1 else f'Every one of the {len(tags):,} tags'} {_held_how(tags)}.")
    unread = [tag for tag in tags if _is_unread(tag)]
    if unread:
        words.append(_unread_words(unread, len(tags)))
    expired = sum(int(expiry["snapshots_expired"]) for table in facts.tables for expiry in table.expiries)
    freed = sum(_freed_bytes(expiry) for table in facts.tables for expiry in table.expiries)
    if expired:
        given_back = f", which gave back {_bytes(freed)}" if freed > 0 else ""
        words.append(f"{_count(expired, 'snapshot')} expired{given_back}.")
    stopped = [run.status.run_id for run in facts.runs if run.status.state == "failed"]
    unfinished = [run.status.run_id for run in facts.runs if run.status.state == "unfinished" and not run.is_writing]
    if stopped:
        words.append(f"{_count(len(stopped), 'run')} stopped and {_was(len(stopped))} not finished: see below.")
    if unfinished:
        words.append(f"{_count(len(unfinished), 'run')} {_was(len(unfinished))} not complete: running, or killed.")
    if not facts.runs:
        words.append("No pipeline has run in this lake.")
    elif not words:
        words.append("All steps are done.")
    # A delivery that was refused is the pipeline at work; any other error wants a person.
    failed = [run for run in facts.runs if run.status.state == "failed"]
    if not all(run.stops and run.stops[-1].bad_load for run in failed):
        return "bad", " ".join(words)
    return "open" if stopped or unfinished or unread else "good", " ".join(words)


def _unread_words(unread: Sequence[TagFacts], count: int) -> str:
    """What is known of tags that were not read for this report: when they were read, and what was found then."""
    times = [tag.read_ms for tag in unread if tag.read_ms is not None]
    part = "" if len(unread) == count else f"{len(unread):,} of "
    which = "the tag" if count == 1 else f"{part}the {count:,} tags"
    if not times:
        return f"This report did not read {which} again."
    when = f"on {_utc(times[0])}" if min(times) == max(times) else f"from {_utc(min(times))} to {_utc(max(times))}"
    if len(times) < len(unread):
        return f"This report did not read {which} again; {len(times):,} matched when last read {when}."
    it, was = ("it", "was") if len(unread) == 1 else ("they", "were")
    return f"This report did not read {which} again: {it} {was} last read {when}, then {it} matched."


def _was(count: int) -> str:
    return "is" if count == 1 else "are"


def _held_how(tags: Sequence[TagFacts]) -> str:
    """What the judgement of tags rests on, all of which hold."""
    read = [tag.read_now and tag.reads_same for tag in tags]
    if all(read):
        return "reads as it did when it was tagged"
    return "holds what was checked" if any(read) else "agrees with what it was checked against"


def _freed_bytes(expiry: Mapping[str, Any]) -> int:
    return max(int(expiry["disk_bytes_before"]) - int(expiry["disk_bytes_after"]), 0)


def _tiles(facts: ReportFacts) -> str:
    versions = [version for table in facts.tables for version in table.versions]
    tags = [tag for table in facts.tables for tag in table.tags]
    merges = [version for version in versions if version.verb == "merge" and not version.rolled_back]
    tiles = []
    if merges:
        tiles.append(
            (
                f"{len(merges):,}",
                "increment merged" if len(merges) == 1 else "increments merged",
                _count(sum(version.rows for version in merges), "row"),
            )
        )
    rows = sum(table.rows for table in facts.tables)
    tiles.append((f"{rows:,}", "row now" if rows == 1 else "rows now", f"in {_count(len(facts.tables), 'table')}"))
    alive = sum(version.alive for version in versions)
    tiles.append((f"{alive:,}", "snapshot kept" if alive == 1 else "snapshots kept", f"of {len(versions):,} committed"))
    if tags:
        tiles.append(_tag_tile(tags))
    given_back = [(sum(map(_freed_bytes, table.expiries)), table.expiries) for table in facts.tables]
    freed = sum(size for size, _ in given_back)
    if freed:
        # Each byte once: what was given back, and what is left after the last expiry.
        held_ever = sum(size + int(expiries[-1]["disk_bytes_after"]) for size, expiries in given_back if expiries)
        tiles.append(
            (f"{_percent(freed / held_ever)}", "of the space given back", f"{_bytes(freed)} of {_bytes(held_ever)}")
        )
    bad_loads = {(run.status.run_id, stop.step) for run in facts.runs for stop in run.stops if stop.bad_load}
    if bad_loads:
        repaired = {
            (run.status.run_id, stop.step)
            for run in facts.runs
            for stop in run.stops
            if stop.bad_load and stop.repaired_ms is not None
        }
        tiles.append(
            (
                f"{len(bad_loads):,}",
                "bad load stopped" if len(bad_loads) == 1 else "bad loads stopped",
                f"{len(repaired):,} repaired later" if repaired else "not repaired",
            )
        )
    others = sum(not stop.bad_load for run in facts.runs for stop in run.stops)
    if others:
        tiles.append((f"{others:,}", "other stop" if others == 1 else "other stops", "by an error: see the runs"))
    cells = "".join(
        f'<div class="tile"><dd{_size_class(number)}>{escape(number)}</dd>'
        f"<dt>{escape(what)}</dt><p>{escape(more)}</p></div>"
        for number, what, more in tiles
    )
    return f'<dl class="tiles">{cells}</dl>'


def _tag_tile(tags: Sequence[TagFacts]) -> tuple[str, str, str]:
    held = sum(_holds_now(tag) is True for tag in tags)
    word = "tag" if len(tags) == 1 else "tags"
    if held:
        return f"{held:,}/{len(tags):,}", f"{word} verified", "for this report"
    is_unread = any(_is_unread(tag) for tag in tags)
    return f"{len(tags):,}", word, "not read for this report" if is_unread else "each pins a version"


def _size_class(number: str) -> str:
    """Long numbers are set smaller, so that they stay in their card."""
    return "" if len(number) <= 6 else ' class="long"' if len(number) <= 9 else ' class="longer"'


def _percent(share: float) -> str:
    """``0.04 %``: small shares keep a digit that says something."""
    percent = 100 * share
    return (
        f"{percent:.0f} %"
        if percent >= 10 or percent == 0
        else f"{percent:.1g} %"
        if percent < 1
        else f"{percent:.1f} %"
    )


# ---- one table


def _table_sections(table: TableFacts, *, alone: bool) -> str:
    heading = "" if alone else f'<h2 class="table-name">Table <code>{escape(table.name)}</code></h2>'
    return "".join([heading, _timeline(table), _rows_and_files(table), _storage(table), _tags(table.tags)])


def _timeline(table: TableFacts) -> str:
    versions = table.versions
    position = {version.snapshot: number + 0.5 for number, version in enumerate(versions)}
    ticks = [
        (
            number + 0.5,
            _fate(version),
            f"snapshot {version.snapshot}, {_time(version.committed_ms)}: {version.step or version.verb} "
            f"({_FATES[_fate(version)]})",
        )
        for number, version in enumerate(versions)
    ]
    flags = [
        Flag(position[tag.snapshot], _short(tag.tag), "flag" if _tag_holds(tag) is not False else "flag wrong")
        for tag in table.tags
        if tag.snapshot in position
    ]
    alive, undone = (sum(_fate(version) == fate for version in versions) for fate in ("alive", "undone"))
    label = (
        f"{_count(len(versions), 'snapshot')}, of which {alive:,} {_was(alive)} kept; {_count(len(table.tags), 'tag')}"
    )
    drawn = timeline(ticks, flags, label=label, x_max=len(versions), axis=_group_ticks(versions))
    legend = _legend(
        ("key alive", f"kept ({alive:,})"),
        ("key gone", f"expired ({len(versions) - alive - undone:,})"),
        *((("key undone", f"rolled back ({undone:,})"),) if undone else ()),
        *((("key flag", f"{'tag' if len(flags) == 1 else 'tags'} ({len(flags):,})"),) if flags else ()),
    )
    first, last = versions[0].committed_ms, versions[-1].committed_ms
    return _card(
        "Snapshots and tags",
        f"Every commit is a snapshot: from {_time(first)} to {_time(last)} UTC. A tag keeps its version readable when "
        "the snapshots around it have expired.",
        drawn + legend,
    )


def _fate(version: VersionFacts) -> str:
    """A key of `_FATES`, which is the mark's class too."""
    return "alive" if version.alive else "undone" if version.rolled_back else "gone"


def _rows_and_files(table: TableFacts) -> str:
    versions = table.versions
    hints = [
        f"{version.step or version.verb}: {_count(version.rows, 'row')}, snapshot {version.snapshot}"
        for version in versions
    ]
    rows = [float(version.rows) if version.verb in ("merge", "ingest", "append") else 0.0 for version in versions]
    verbs = sorted({_WRITTEN[version.verb] for version in versions if version.verb in _WRITTEN})
    undone = " Red: rolled back." if any(version.rolled_back for version in versions) else ""
    axis = _group_ticks(versions)
    bars = plot(
        [Bars(rows, hints, marked=[version.rolled_back for version in versions])],
        label=f"rows written by each commit, at most {max(rows, default=0):,.0f}",
        x_max=len(versions),
        ticks=axis,
        format_y=lambda value: f"{value:,.0f}",
        whole=True,
    )
    files = [(float(number), float(version.files_total)) for number, version in enumerate(versions)]
    files.append((float(len(versions)), files[-1][1]))
    lines = plot(
        [Area(files, "area soft", stepped=True), Line(files, stepped=True)],
        label=f"data files of each version, at most {max((y for _, y in files), default=0):,.0f}",
        x_max=len(versions),
        ticks=axis,
        format_y=lambda value: f"{value:,.0f}",
        whole=True,
    )
    compactions = sum(version.verb == "compact" for version in versions)
    note = f" {_count(compactions, 'compaction')} made them fewer." if compactions else ""
    return _card(
        "Rows by step",
        f"Rows that each commit wrote ({', '.join(verbs)}).{undone}" if verbs else "No commit wrote rows.",
        bars,
    ) + _card("Files by step", f"Data files that a reader of that version opens.{note}", lines)


def _storage(table: TableFacts) -> str:
    versions = table.versions
    count = len(versions)
    expiry = next((one for one in reversed(table.expiries) if one["snapshots_expired"]), None)
    room = max(count * 0.06, 1.0) if expiry else 0.0
    # From edge to edge, so that a single version is seen too.
    places = [0.0, *(number + 0.5 for number in range(count)), float(count)]
    shown = [versions[0], *versions, versions[-1]]
    needed = [(x, float(version.bytes_total)) for x, version in zip(places, shown, strict=True)]
    kept = [(x, float(version.bytes_written)) for x, version in zip(places, shown, strict=True)]
    verticals: tuple[Tick, ...] = ()
    if expiry:
        kept = [*kept, (count, kept[-1][1]), (count, float(table.data_bytes)), (count + room, float(table.data_bytes))]
        needed = [*needed, (count + room, needed[-1][1])]
        verticals = (Tick(count, "expiry"),)
    drawn = plot(
        [Area(kept, "area history"), Area(needed, "area"), Line(needed, "line")],
        label=f"bytes of data files: the newest version needs {_bytes(needed[-1][1])}, "
        f"all versions together had {_bytes(max(y for _, y in kept))}",
        x_max=count + room,
        ticks=_group_ticks(versions),
        format_y=_bytes,
        verticals=verticals,
        tall=True,
    )
    legend = _legend(("key box", "needed by that version"), ("key box history", "history: older versions on the store"))
    card = _card("Storage by version", "Data files on the store as the versions went by.", drawn + legend)
    return card + (_freed(table) if expiry else "")


def _freed(table: TableFacts) -> str:
    rows = []
    for expiry in table.expiries:
        before, after = int(expiry["disk_bytes_before"]), int(expiry["disk_bytes_after"])
        if not before:
            continue
        newest, shown = table.versions[-1].bytes_total, _told_apart(before, after)
        segments = (
            ("newest", min(newest, after), "newest version"),
            ("pinned", max(after - newest, 0), "tags, kept snapshots, metadata"),
            ("freed", max(before - after, 0), "freed"),
        )
        bar = "".join(
            f'<i class="{css}" style="width:{100 * size / before:.2f}%" title="{escape(what)}: {_bytes(size)}"></i>'
            for css, size, what in segments
            if size
        )
        legend = _legend(*((f"key box {css}", f"{what} {_bytes(size)}") for css, size, what in segments))
        rows.append(
            f'<div class="stack" role="img" aria-label="{shown[0]} before, {shown[1]} after">{bar}</div>'
            f"{legend}"
            f"<p>{_count(int(expiry['snapshots_expired']), 'snapshot')} expired: "
            f"{_count(int(expiry['snapshots_expired']), 'snapshot file')} and "
            f"{_count(int(expiry['files_deleted']), 'other file')} deleted; the table's folder had "
            f"<b>{shown[0]}</b> before and <b>{shown[1]}</b> after.</p>"
        )
    return _card("What expiry freed", "Nothing that a tag or a kept snapshot needs was touched.", "".join(rows))


def _tags(tags: Sequence[TagFacts]) -> str:
    """The table of tags, with the columns that something is known for."""
    if not tags:
        return ""
    read, compared = sum(tag.read_now for tag in tags), any(tag.reads_same is not None for tag in tags)
    checked = sum(tag.check is not None for tag in tags)
    counted = any(tag.checksum is not None for tag in tags)
    rows = []
    for tag in tags:
        cells = [
            f'<th scope="row">{escape(tag.tag)}</th>',
            f'<td data-label="snapshot">{tag.snapshot}{"" if tag.alive else " <small>expired</small>"}</td>',
            f'<td data-label="committed">{_time(tag.committed_ms)}</td>',
            f'<td data-label="data">{_bytes(tag.data_bytes)}</td>',
        ]
        if counted:
            cells.append(f'<td data-label="rows">{"" if tag.rows is None else f"{tag.rows:,}"}</td>')
            cells.append(f'<td data-label="checksum"><code>{escape(tag.checksum or "")}</code></td>')
        if compared:
            cells.append(f'<td class="wide" data-label="since tagged">{_since_tagged(tag)}</td>')
        if checked:
            cells.append(f'<td data-label="checked">{_tag_check(tag)}</td>')
        rows.append(f"<tr>{''.join(cells)}</tr>")
    columns = ["tag", "snapshot", "committed (UTC)", "data"]
    columns += ["rows", "checksum"] if counted else []
    columns += ["since tagged"] if compared else []
    columns += ["checked"] if checked else []
    words = ["Each tag keeps its version."]
    if counted:
        words.append("Rows and checksum are as last read; the console shows the same when a tag is made.")
    if read:
        words.append(
            f"{_of(read, len(tags), 'tag')} read again in full for this report and compared with the day of tagging."
        )
    elif compared:
        words.append("This report read no tag again: the verdicts are of the times given with them.")
    if checked:
        words.append(f"{_of(checked, len(tags), 'tag')} compared with a source outside of the lake.")
    return _card("Tags", " ".join(words), _grid(columns, "".join(rows)))


def _of(part: int, count: int, what: str) -> str:
    """``All 12 tags were``, ``3 of 12 tags were``."""
    if part == count:
        return f"The {what} was" if count == 1 else f"All {_count(count, what)} were"
    return f"{part:,} of {_count(count, what)} {'was' if part == 1 else 'were'}"


def _tag_check(tag: TagFacts) -> str:
    if tag.check is None:
        return '<span class="unknown">–</span>'
    return _mark(tag.check.held, tag.check.detail, tag.check.detail)


def _since_tagged(tag: TagFacts) -> str:
    """A reading of this report has a mark; an older one has its time, and a mark only when it did not match."""
    if tag.read_now or tag.reads_same is None:
        return _mark(tag.reads_same, "unchanged", "changed")
    if tag.reads_same:
        return f'<span class="unknown">last read on {_utc(tag.read_ms)}, then unchanged</span>'
    return _mark(False, "", f"changed when last read, on {_utc(tag.read_ms)}")


def _tag_holds(tag: TagFacts) -> bool | None:
    """What was found when it was last looked at, by a check or a reading; None: no one did."""
    verdicts = [tag.reads_same, None if tag.check is None else tag.check.held]
    known = [one for one in verdicts if one is not None]
    return all(known) if known else None


def _holds_now(tag: TagFacts) -> bool | None:
    """As `_tag_holds`, from what was read or checked for this report alone."""
    return _tag_holds(tag if tag.read_now else replace(tag, reads_same=None))


def _is_unread(tag: TagFacts) -> bool:
    """Whether it has a fingerprint that could have been compared for this report, and nothing was."""
    return tag.checksum is not None and _holds_now(tag) is None


# ---- checks and runs


def _checks(checks: Sequence[Check]) -> str:
    others = [check for check in checks if check.tag is None]
    if not others:
        return ""
    items = "".join(
        f'<li><span class="{"good" if check.held else "bad"}">{"✓" if check.held else "✗"}</span>'
        f"<span><b>{escape(check.subject)}</b> {escape(check.detail)}</span></li>"
        for check in others
    )
    return _card("Checks", "", f'<ul class="checks">{items}</ul>')


def _runs(runs: Sequence[RunFacts]) -> str:
    parts = []
    for run in runs:
        status = run.status
        state = {"complete": "complete", "failed": "stopped", "unfinished": "not complete"}[status.state]
        state = "this report is a step of it" if run.is_writing else state
        own = [step for step in run.steps if not step.carried_from]
        carried = len(run.steps) - len(own)
        seconds = f"{sum(step.seconds for step in own):.1f} s"
        done = f"{len(own):,} of {_count(status.steps_total, 'step')} done in {seconds}"
        done += f", {carried:,} taken over from earlier runs" if carried else ""
        ended = (
            ""
            if status.ended_ms is None or run.is_writing
            else f" to {_time(status.ended_ms, since=status.started_ms)}"
        )
        parts.append(
            f'<article class="run"><h3>{escape(status.pipeline)} '
            f'<small class="{"writing" if run.is_writing else status.state}">{state}</small></h3>'
            f"<p>{_time(status.started_ms)}{ended} UTC · {done}"
            f"{'' if status.attempts == 1 else f', {status.attempts:,} calls'} · "
            f"<code>{escape(status.run_id)}</code></p>"
            f"{''.join(map(_stop, run.stops))}{_verbs(own)}</article>"
        )
    return _card(
        "Runs", "Every step is in the run ledger; running a pipeline again skips what is done.", "".join(parts)
    )


def _stop(stop: Stop) -> str:
    """What ended a call of the run, and what became of it."""
    later = "" if stop.repaired_ms is None else f" Repaired: the step was done at {_time(stop.repaired_ms)} UTC."
    css = "stop" if stop.repaired_ms is None else "stop repaired"
    return f'<p class="{css}"><b>{_time(stop.ended_ms)} UTC</b> {escape(stop.sentence)}{later}</p>'


def _verbs(steps: Sequence[StepRecord]) -> str:
    by_verb: dict[str, list[StepRecord]] = {}
    for step in steps:
        by_verb.setdefault(step.verb, []).append(step)
    if not by_verb:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{escape(verb)}</th><td data-label="steps">{len(own):,}</td>'
        f'<td data-label="rows">{_total(own, "rows")}</td>'
        f'<td data-label="files added">{_total(own, "files_added")}</td>'
        f'<td data-label="seconds">{sum(step.seconds for step in own):.1f}</td>'
        f'<td data-label="median">{1000 * median(step.seconds for step in own):,.0f} ms</td></tr>'
        for verb, own in by_verb.items()
    )
    return _grid(("step", "times", "rows", "files added", "seconds", "median"), rows)


# ---- small pieces


def _card(title: str, lead: str, content: str) -> str:
    lead_text = f'<p class="lead">{escape(lead)}</p>' if lead else ""
    return f'<section class="card"><h2>{escape(title)}</h2>{lead_text}{content}</section>'


def _grid(columns: Sequence[str], rows: str) -> str:
    heads = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'


def _legend(*entries: tuple[str, str]) -> str:
    items = "".join(f'<li><i class="{css}" aria-hidden="true"></i>{escape(text)}</li>' for css, text in entries)
    return f'<ul class="legend">{items}</ul>'


def _mark(held: bool | None, good: str, bad: str) -> str:
    if held is None:
        return '<span class="unknown">not read again</span>'
    css, mark, text = ("good", "✓", good) if held else ("bad", "✗", bad)
    return f'<span class="{css}"><span aria-hidden="true">{mark}</span> {escape(text)}</span>'


def _group_ticks(versions: Sequence[VersionFacts]) -> list[Tick]:
    """One label where a new group of steps begins; without groups, snapshot ids at the ends and between."""
    starts: list[tuple[int, str]] = []
    for number, version in enumerate(versions):
        if version.group and (not starts or starts[-1][1] != version.group):
            starts.append((number, version.group))
    if 1 < len(starts) <= 24:
        ends = [number for number, _ in starts[1:]] + [len(versions)]
        return [
            Tick((start + end) / 2, _short(group.rpartition(" ")[2]))
            for (start, group), end in zip(starts, ends, strict=True)
        ]
    if not versions:
        return []
    places = sorted({0, len(versions) // 4, len(versions) // 2, 3 * len(versions) // 4, len(versions) - 1})
    return [Tick(number + 0.5, f"#{versions[number].snapshot}") for number in places]


def _short(name: str) -> str:
    """``2013-01`` as ``Jan``; anything else as it is."""
    match = re.fullmatch(r"\d{4}-(\d{2})", name)
    return _MONTHS[int(match[1]) - 1] if match and 1 <= int(match[1]) <= 12 else name


def _time(unix_ms: int, *, since: int | None = None) -> str:
    """A time in UTC to the second; without its day when that is the day of `since`."""
    time = datetime.datetime.fromtimestamp(unix_ms / 1000, datetime.UTC)
    day = since is not None and datetime.datetime.fromtimestamp(since / 1000, datetime.UTC).date() == time.date()
    return f"{time:%H:%M:%S}" if day else f"{time.day} {_MONTHS[time.month - 1]} {time.year}, {time:%H:%M:%S}"


def _utc(unix_ms: int | None) -> str:
    return "an unknown day" if unix_ms is None else f"{_time(unix_ms)} UTC"


def _total(steps: Iterable[StepRecord], metric: str) -> str:
    values = [int(step.metrics[metric]) for step in steps if metric in step.metrics]
    return f"{sum(values):,}" if values else "–"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _bytes(size: float, *, digits: int = 1) -> str:
    """Decimal units; `digits` behind the point of numbers below 100."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            value = size / factor
            return (
                f"{value:.0f} {unit}"
                if digits < 2 and (value >= 100 or value == int(value))
                else f"{value:.{digits}f} {unit}"
            )
    return f"{size:.0f} B"


def _told_apart(one: float, other: float) -> tuple[str, str]:
    """Two sizes with as many digits as it takes to see that they differ."""
    shown = [(_bytes(one, digits=digits), _bytes(other, digits=digits)) for digits in (1, 2, 3, 4, 6, 9)]
    return next((pair for pair in shown if pair[0] != pair[1]), shown[0])
