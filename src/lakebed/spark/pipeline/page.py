"""The report as one HTML page: no script, no font, no image, nothing fetched; light and dark; a phone will do.

Owns: what the page says and how it looks. Pure: `ReportFacts` -> text. Shapes come from `plots`, styles from `page.css`
beside this module, which is put into the page.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from statistics import median

from lakebed.spark.pipeline.facts import Check, ReportFacts, RunFacts, TableFacts, TagFacts, VersionFacts
from lakebed.spark.pipeline.model import StepRecord
from lakebed.spark.pipeline.plots import Area, Bars, Flag, Line, Tick, plot, timeline

__all__ = ["render"]

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
    good, sentence = verdict(facts)
    mark = "✓" if good else "!"
    return (
        f'<header><p class="brand">lakebed · pipeline report</p><h1>{escape(facts.title)}</h1>'
        f'<p class="verdict {"good" if good else "bad"}"><span class="mark" aria-hidden="true">{mark}</span>'
        f"<span>{escape(sentence)}</span></p></header>"
    )


def verdict(facts: ReportFacts) -> tuple[bool, str]:
    """Whether all is well, and the one sentence a person wants to read first."""
    tags = [tag for table in facts.tables for tag in table.tags]
    judged = [tag for tag in tags if _tag_holds(tag) is not None]
    wrong = [tag.tag for tag in judged if not _tag_holds(tag)]
    wrong += [check.subject for check in facts.checks if not check.held and check.tag is None]
    if wrong:
        return False, f"Something does not hold: {', '.join(wrong)}."
    words = []
    if judged and len(judged) == len(tags):
        words.append(
            f"{'Every one of the ' if len(tags) > 1 else 'The '}{_count(len(tags), 'tag')} reads exactly right."
        )
    expired = sum(int(expiry["snapshots_expired"]) for table in facts.tables for expiry in table.expiries)
    freed = sum(
        int(expiry["disk_bytes_before"]) - int(expiry["disk_bytes_after"])
        for table in facts.tables
        for expiry in table.expiries
    )
    if expired:
        words.append(f"{_count(expired, 'snapshot')} that nobody needs are gone, and {_bytes(freed)} came back.")
    unfinished = [run.status.run_id for run in facts.runs if run.status.state == "unfinished"]
    if not words:
        words.append("All steps so far are done." if unfinished else "All steps are done.")
    return True, " ".join(words)


def _tiles(facts: ReportFacts) -> str:
    versions = [version for table in facts.tables for version in table.versions]
    tags = [tag for table in facts.tables for tag in table.tags]
    merges = [version for version in versions if version.verb == "merge" and not version.rolled_back]
    tiles = []
    if merges:
        tiles.append((f"{len(merges):,}", "increments merged", f"{sum(version.rows for version in merges):,} rows"))
    rows = sum(table.rows for table in facts.tables)
    tiles.append((f"{rows:,}", "rows now", f"in {_count(len(facts.tables), 'table')}"))
    alive = sum(version.alive for version in versions)
    tiles.append((f"{alive:,}", "snapshots kept", f"of {len(versions):,} committed"))
    if tags:
        held = sum(_tag_holds(tag) is True for tag in tags)
        tiles.append(
            (
                f"{held}/{len(tags)}" if held else f"{len(tags)}",
                "tags verified" if held else "tags",
                "each pins a version",
            )
        )
    expiries = [expiry for table in facts.tables for expiry in table.expiries]
    before = sum(int(expiry["disk_bytes_before"]) for expiry in expiries)
    if before:
        freed = before - sum(int(expiry["disk_bytes_after"]) for expiry in expiries)
        tiles.append(
            (f"{100 * freed / before:.0f} %", "of the space came back", f"{_bytes(freed)} of {_bytes(before)}")
        )
    stopped = sum(run.status.state == "failed" for run in facts.runs)
    if stopped:
        tiles.append(
            (f"{stopped}", "bad load stopped" if stopped == 1 else "bad loads stopped", "nothing of it was published")
        )
    cells = "".join(
        f'<div class="tile"><dd>{escape(number)}</dd><dt>{escape(what)}</dt><p>{escape(more)}</p></div>'
        for number, what, more in tiles
    )
    return f'<dl class="tiles">{cells}</dl>'


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
            f"snapshot {version.snapshot}: {version.step or version.verb} ({_FATES[_fate(version)]})",
        )
        for number, version in enumerate(versions)
    ]
    flags = [
        Flag(position[tag.snapshot], _short(tag.tag), "flag" if _tag_holds(tag) is not False else "flag wrong")
        for tag in table.tags
        if tag.snapshot in position
    ]
    alive, undone = (sum(_fate(version) == fate for version in versions) for fate in ("alive", "undone"))
    label = f"{len(versions)} snapshots, of which {alive} are kept; {len(table.tags)} tags"
    drawn = timeline(ticks, flags, label=label, x_max=len(versions), axis=_group_ticks(versions))
    legend = _legend(
        ("key alive", f"kept ({alive:,})"),
        ("key gone", f"expired ({len(versions) - alive - undone:,})"),
        *((("key undone", f"rolled back ({undone:,})"),) if undone else ()),
        ("key flag", "tag"),
    )
    return _card(
        "Snapshots and tags",
        "Every commit is a snapshot. A tag keeps its version readable when the snapshots around it have expired.",
        drawn + legend,
    )


def _fate(version: VersionFacts) -> str:
    """A key of `_FATES`, which is the mark's class too."""
    return "alive" if version.alive else "undone" if version.rolled_back else "gone"


def _rows_and_files(table: TableFacts) -> str:
    versions = table.versions
    hints = [
        f"{version.step or version.verb}: {version.rows:,} rows, snapshot {version.snapshot}" for version in versions
    ]
    rows = [float(version.rows) if version.verb in ("merge", "ingest", "append") else 0.0 for version in versions]
    undone = " Red: rolled back." if any(version.rolled_back for version in versions) else ""
    axis = _group_ticks(versions)
    bars = plot(
        [Bars(rows, hints, marked=[version.rolled_back for version in versions])],
        label=f"rows written by each commit, at most {max(rows, default=0):,.0f}",
        x_max=len(versions),
        ticks=axis,
        format_y=lambda value: f"{value:,.0f}",
    )
    files = [(number + 0.5, float(version.files_total)) for number, version in enumerate(versions)]
    lines = plot(
        [Area(files, "area soft", stepped=True), Line(files, stepped=True)],
        label=f"data files of each version, at most {max((y for _, y in files), default=0):,.0f}",
        x_max=len(versions),
        ticks=axis,
        format_y=lambda value: f"{value:,.0f}",
    )
    compactions = sum(version.verb == "compact" for version in versions)
    note = f" Each drop is one of {compactions} compactions." if compactions > 1 else ""
    return _card(
        "Rows by step", f"What each commit wrote: inserts, late corrections and deletes.{undone}", bars
    ) + _card("Files by step", f"Data files that a reader of that version opens.{note}", lines)


def _storage(table: TableFacts) -> str:
    versions = table.versions
    count = len(versions)
    expiry = next((one for one in reversed(table.expiries) if one["snapshots_expired"]), None)
    room = max(count * 0.06, 1.0) if expiry else 0.0
    needed = [(number + 0.5, float(version.bytes_total)) for number, version in enumerate(versions)]
    kept = [(number + 0.5, float(version.bytes_written)) for number, version in enumerate(versions)]
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
        newest = table.versions[-1].bytes_total
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
            f'<div class="stack" role="img" aria-label="{_bytes(before)} before, {_bytes(after)} after">{bar}</div>'
            f"{legend}"
            f"<p>{_count(int(expiry['snapshots_expired']), 'snapshot')} expired; "
            f"{_count(int(expiry['files_deleted']), 'object')} deleted; the table's folder went from "
            f"<b>{_bytes(before)}</b> to <b>{_bytes(after)}</b>.</p>"
        )
    return _card("What expiry freed", "Nothing that a tag or a kept snapshot needs was touched.", "".join(rows))


def _tags(tags: Sequence[TagFacts]) -> str:
    if not tags:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{escape(tag.tag)}</th>'
        f'<td data-label="snapshot">{tag.snapshot}{"" if tag.alive else " <small>expired</small>"}</td>'
        f'<td data-label="rows">{"" if tag.rows is None else f"{tag.rows:,}"}</td>'
        f'<td data-label="data">{_bytes(tag.data_bytes)}</td>'
        f'<td data-label="checksum"><code>{escape(_shortened(tag.checksum))}</code></td>'
        f'<td data-label="since tagged">{_mark(tag.reads_same, "unchanged", "changed")}</td>'
        f'<td data-label="verified">{_tag_check(tag)}</td></tr>'
        for tag in tags
    )
    return _card(
        "Tags, verified",
        "Read again in full: the same rows as on the day they were tagged, and the same as an independent source says.",
        _grid(("tag", "snapshot", "rows", "data", "checksum", "since tagged", "verified"), rows),
    )


def _tag_check(tag: TagFacts) -> str:
    if tag.check is None:
        return '<span class="unknown">not asked</span>'
    return _mark(tag.check.held, tag.check.detail, tag.check.detail)


def _tag_holds(tag: TagFacts) -> bool | None:
    """None: nobody looked."""
    verdicts = [tag.reads_same, None if tag.check is None else tag.check.held]
    known = [one for one in verdicts if one is not None]
    return all(known) if known else None


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
    return _card("What happened", "", f'<ul class="checks">{items}</ul>')


def _runs(runs: Sequence[RunFacts]) -> str:
    parts = []
    for run in runs:
        status = run.status
        state = {"complete": "complete", "failed": "stopped", "unfinished": "going on"}[status.state]
        seconds = sum(step.seconds for step in run.steps)
        error = "" if status.error is None else f'<p class="stop">{escape(status.error)}</p>'
        parts.append(
            f'<article class="run"><h3>{escape(status.pipeline)} <small class="{status.state}">{state}</small></h3>'
            f"<p>{status.steps_done:,} of {_count(status.steps_total, 'step')} in {seconds:.1f} s"
            f"{'' if status.attempts == 1 else f', {status.attempts} calls'} · <code>{escape(status.run_id)}</code></p>"
            f"{error}{_verbs(run.steps)}</article>"
        )
    return _card(
        "Runs", "Every step is in the run ledger; running a pipeline again skips what is done.", "".join(parts)
    )


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


def _shortened(checksum: str | None) -> str:
    if checksum is None:
        return ""
    return checksum if len(checksum) <= 14 else f"{checksum[:6]}…{checksum[-6:]}"


def _total(steps: Iterable[StepRecord], metric: str) -> str:
    values = [int(step.metrics[metric]) for step in steps if metric in step.metrics]
    return f"{sum(values):,}" if values else "–"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _bytes(size: float) -> str:
    """Decimal units, three digits."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            value = size / factor
            return f"{value:.0f} {unit}" if value >= 100 or value == int(value) else f"{value:.1f} {unit}"
    return f"{size:.0f} B"
