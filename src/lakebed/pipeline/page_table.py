"""The sections of a report's page about one table: its snapshots, rows, files, space and tags.

Pure: `TableFacts` -> text. Shapes come from `plots`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lakebed.pipeline.page_parts import (
    MONTHS,
    are,
    bytes_text,
    card,
    draw,
    legend,
    sizes_that_differ,
    time_text,
    utc_text,
    verdict_mark,
)
from lakebed.pipeline.plots import Area, Bars, Flag, Line, Tick, plot, timeline
from lakebed.pipeline.report_model import TableFacts, TagFacts, VersionFacts
from lakebed.texts import format_count

_WRITTEN = {
    "merge": "merges: upserts and deletes",
    "ingest": "ingests",
    "publish": "publications of branches",
    "append": "commits from outside of pipelines",
}
_FATES = {"alive": "kept", "gone": "expired", "undone": "rolled back"}
_LABEL_SHARE = 0.2
"""The share of a narrow plot's width that the label of an expiry takes."""


def table_sections(table: TableFacts, *, alone: bool) -> list[str]:
    """Return the sections of one table that has versions, with its name unless it is `alone` on the page."""
    heading = [] if alone else [draw("table_name", table.name)]
    return [*heading, _timeline(table), _rows_and_files(table), _storage(table), *_tags(table.tags)]


def _timeline(table: TableFacts) -> str:
    versions = table.versions
    position = {version.snapshot: number + 0.5 for number, version in enumerate(versions)}
    ticks = [
        (
            number + 0.5,
            _fate(version),
            f"snapshot {version.snapshot}, {time_text(version.committed_ms)}: {version.step or version.verb} "
            f"({_FATES[_fate(version)]})",
        )
        for number, version in enumerate(versions)
    ]
    flags = [
        Flag(position[tag.snapshot], tag.tag, "flag" if tag_holds(tag) is not False else "flag wrong")
        for tag in table.tags
        if tag.snapshot in position
    ]
    alive, undone = (sum(_fate(version) == fate for version in versions) for fate in ("alive", "undone"))
    kept_text = f"{alive:,} {are(alive)} kept"
    label = f"{format_count(len(versions), 'snapshot')}, of which {kept_text}; {format_count(len(table.tags), 'tag')}"
    svg = timeline(ticks, flags, label=label, x_max=len(versions), axis=_group_ticks(versions))
    keys = legend(
        ("key alive", f"kept ({alive:,})"),
        ("key gone", f"expired ({len(versions) - alive - undone:,})"),
        *((("key undone", f"rolled back ({undone:,})"),) if undone else ()),
        *((("key flag", f"{'tag' if len(flags) == 1 else 'tags'} ({len(flags):,})"),) if flags else ()),
    )
    first, last = versions[0].committed_ms, versions[-1].committed_ms
    words = f"Every commit is a snapshot: from {time_text(first)} to {time_text(last)} UTC."
    if flags:
        words += " A tag keeps its version readable when the snapshots around it have expired."
    return card("Snapshots and tags" if flags else "Snapshots", words, svg, keys)


def _fate(version: VersionFacts) -> str:
    """Return a key of `_FATES`, which is also the mark's class."""
    return "alive" if version.alive else "undone" if version.rolled_back else "gone"


def _rows_and_files(table: TableFacts) -> str:
    versions = table.versions
    hints = [
        f"{version.step or version.verb}: {format_count(version.rows, 'row')}, snapshot {version.snapshot}"
        for version in versions
    ]
    rows = [float(version.rows) if version.verb in _WRITTEN else 0.0 for version in versions]
    verbs = sorted({_WRITTEN[version.verb] for version in versions if version.verb in _WRITTEN and version.rows})
    undone_text = " Red: rolled back." if any(version.rolled_back for version in versions) else ""
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
    note = f" {format_count(compactions, 'compaction')} made them fewer." if compactions else ""
    caption = f"Rows that each commit wrote ({', '.join(verbs)}).{undone_text}" if verbs else "No commit wrote rows."
    return draw(
        "pair",
        card("Rows by step", caption, bars),
        card("Files by step", f"Data files that a reader of that version opens.{note}", lines),
    )


def _storage(table: TableFacts) -> str:
    versions = table.versions
    count = len(versions)
    expiries = [(_place_of(expiry, versions), expiry) for expiry in table.expiries if expiry["snapshots_expired"]]
    room = max(count * 0.06, 1.0) if expiries and expiries[-1][0] == count else 0.0
    stored_bytes = _on_store(versions, expiries)
    # Extended to both edges, so that a single version is visible too.
    places = [0.0, *(number + 0.5 for number in range(count)), float(count)]
    shown_versions = [versions[0], *versions, versions[-1]]
    needed_bytes = [(x, float(version.bytes_total)) for x, version in zip(places, shown_versions, strict=True)]
    if room:
        stored_bytes = [*stored_bytes, (count, float(table.data_bytes)), (count + room, float(table.data_bytes))]
        needed_bytes = [*needed_bytes, (count + room, needed_bytes[-1][1])]
    svg = plot(
        [Area(stored_bytes, "area history"), Area(needed_bytes, "area"), Line(needed_bytes, "line")],
        label=f"bytes of data files: the newest version needs {bytes_text(needed_bytes[-1][1])}, "
        f"the store had at most {bytes_text(max(y for _, y in stored_bytes))}",
        x_max=count + room,
        ticks=_group_ticks(versions),
        format_y=bytes_text,
        verticals=_expiry_lines([place for place, _ in expiries], count + room),
        tall=True,
    )
    keys = legend(("key box", "needed by that version"), ("key box history", "history: older versions on the store"))
    section = card("Storage by version", "Data files on the store as the versions went by.", svg, keys)
    return draw("pair", section, _expiry_section(table)) if expiries else section


def _place_of(expiry: Mapping[str, Any], versions: Sequence[VersionFacts]) -> int:
    """Return how many of the versions were committed when the expiry began."""
    return sum(version.committed_ms <= expiry["started_ms"] for version in versions)


def _on_store(
    versions: Sequence[VersionFacts], expiries: Sequence[tuple[int, Mapping[str, Any]]]
) -> list[tuple[float, float]]:
    """Return the bytes of data files on the store over time: all that was written minus all that was freed."""
    points: list[tuple[float, float]] = []
    freed = written_bytes = 0
    for number in range(len(versions) + 1):
        for _, expiry in (place for place in expiries if place[0] == number):
            before, after = int(expiry["data_bytes_before"]), int(expiry["data_bytes_after"])
            points += [(number, points[-1][1] if points else before), (number, before), (number, after)]
            freed = written_bytes - after
        if number < len(versions):
            written_bytes = versions[number].bytes_written
            size_bytes = float(max(written_bytes - freed, versions[number].bytes_total))
            points += [*([] if points else [(0.0, size_bytes)]), (number + 0.5, size_bytes)]
    return [*points, (float(len(versions)), points[-1][1])]


def _expiry_lines(places: Sequence[int], x_max: float) -> list[Tick]:
    """Return a line for each expiry. It has a label if that fits to its left; the last expiry has precedence."""
    lines: list[Tick] = []
    left = x_max + _LABEL_SHARE * x_max
    for place in sorted(set(places), reverse=True):
        has_room = place >= _LABEL_SHARE * x_max and place <= left - _LABEL_SHARE * x_max
        left = place if has_room else left
        lines.append(Tick(place, "expiry" if has_room else ""))
    return lines[::-1]


def _newest_bytes(expiry: Mapping[str, Any], versions: Sequence[VersionFacts]) -> int | None:
    """Return the bytes of the newest version when the expiry ran; None: an unknown commit may be newer."""
    if "newest_bytes" in expiry:
        return int(expiry["newest_bytes"])
    # The record of an older lakebed has no such metric.
    place = _place_of(expiry, versions)
    newest = versions[place - 1] if place else None
    if newest is None or (place < len(versions) and versions[place].snapshot != newest.snapshot + 1):
        return None
    return newest.bytes_total


def _expiry_section(table: TableFacts) -> str:
    rows = []
    for expiry in table.expiries:
        before, after = int(expiry["disk_bytes_before"]), int(expiry["disk_bytes_after"])
        if not before:
            continue
        newest, size_texts = _newest_bytes(expiry, table.versions), sizes_that_differ(before, after)
        size = 0 if newest is None else min(newest, after)
        segments = (
            *((("newest", size, "newest version then"),) if newest is not None else ()),
            ("pinned", after - size, "kept" if newest is None else "tags, kept snapshots, metadata"),
            ("freed", max(before - after, 0), "freed"),
        )
        bars = [
            (css, f"{100 * size / before:.2f}", f"{label}: {bytes_text(size)}") for css, size, label in segments if size
        ]
        keys = [(f"key box {css}", f"{label} {bytes_text(size)}") for css, size, label in segments]
        snapshots = int(expiry["snapshots_expired"])
        counts = (
            format_count(snapshots, "snapshot"),
            format_count(snapshots, "snapshot file"),
            format_count(int(expiry["files_deleted"]), "other file"),
        )
        rows.append(draw("expiry", *size_texts, bars, keys, utc_text(expiry["started_ms"]), *counts))
    return card("What expiry freed", "Nothing that a tag or a kept snapshot needs was touched.", *rows)


def _tags(tags: Sequence[TagFacts]) -> list[str]:
    if not tags:
        return []
    read_count, is_compared = sum(tag.read_now for tag in tags), any(tag.reads_same is not None for tag in tags)
    checked_count, has_expiry = (
        sum(tag.check is not None for tag in tags),
        any(tag.expires_ms is not None for tag in tags),
    )
    has_counts = any(tag.checksum is not None for tag in tags)
    rows = []
    for tag in tags:
        cells: list[tuple[str, str]] = [
            ("snapshot", draw("snapshot", tag.snapshot, tag.alive)),
            ("committed", time_text(tag.committed_ms)),
            ("data", bytes_text(tag.data_bytes)),
        ]
        if has_expiry:
            cells.append(("kept until", "deleted" if tag.expires_ms is None else time_text(tag.expires_ms)))
        if has_counts:
            cells.append(("rows", "–" if tag.rows is None else f"{tag.rows:,}"))
            cells.append(("checksum", draw("code", tag.checksum or "–")))
        if is_compared or checked_count:
            cells.append(("verdict", _tag_verdict(tag, compared=is_compared)))
        rows.append((tag.tag, cells))
    columns = ["tag", "snapshot", "committed (UTC)", "data"]
    columns += ["kept until (UTC)"] if has_expiry else []
    columns += ["rows", "checksum"] if has_counts else []
    columns += ["verdict"] if is_compared or checked_count else []
    words = ["Each tag keeps its version."]
    if has_expiry:
        words.append("lakebed collect deletes a tag whose time is over.")
    if has_counts:
        words.append("Rows and checksum are as last read; the console shows the same when a tag is made.")
    if read_count:
        words.append(
            f"{_of(read_count, len(tags), 'tag')} read again in full for this report and compared with the day of "
            "tagging."
        )
    elif is_compared:
        words.append("This report read no tag again: it gives the time of the last reading.")
    if checked_count:
        words.append(f"{_of(checked_count, len(tags), 'tag')} compared with a source outside of the lake.")
    return [card("Tags", " ".join(words), draw("grid", columns, rows, is_compared or checked_count > 0))]


def _of(part: int, count: int, what: str) -> str:
    """Return ``All 12 tags were``, ``3 of 12 tags were``."""
    if part == count:
        return f"The {what} was" if count == 1 else f"All {format_count(count, what)} were"
    return f"{part:,} of {format_count(count, what)} {'was' if part == 1 else 'were'}"


def _tag_verdict(tag: TagFacts, *, compared: bool) -> str:
    """Show the check of a tag, and its reading if tags of the table were read, each on a line."""
    lines = [] if tag.check is None else [verdict_mark(tag.check.held, tag.check.detail, tag.check.detail)]
    if compared:
        lines.append(_since_tagged(tag))
    return draw("lines", lines) if lines else draw("verdict", None, "–")


def _since_tagged(tag: TagFacts) -> str:
    """Show a reading of this report with a mark. Show an older one with its time, and a mark only for a mismatch."""
    if tag.read_now or tag.reads_same is None:
        return verdict_mark(tag.reads_same, "unchanged", "changed")
    if tag.reads_same:
        return draw("verdict", None, f"unchanged on {utc_text(tag.read_ms)}")
    return verdict_mark(False, "", f"changed when last read, on {utc_text(tag.read_ms)}")


def tag_holds(tag: TagFacts) -> bool | None:
    """Return the result of the last check or reading of a tag; None: there was none."""
    results = [tag.reads_same, None if tag.check is None else tag.check.held]
    results_known = [result for result in results if result is not None]
    return all(results_known) if results_known else None


def holds_now(tag: TagFacts) -> bool | None:
    """As `tag_holds`, only from readings and checks of this report."""
    return tag_holds(tag if tag.read_now else replace(tag, reads_same=None))


def is_unread(tag: TagFacts) -> bool:
    """Return whether a tag has a fingerprint that was not compared for this report."""
    return tag.checksum is not None and holds_now(tag) is None


def _group_ticks(versions: Sequence[VersionFacts]) -> list[Tick]:
    """Return one label for each group of steps; without groups, snapshot ids at the ends and in between."""
    starts: list[tuple[int, str]] = []
    for number, version in enumerate(versions):
        if version.group and (not starts or starts[-1][1] != version.group):
            starts.append((number, version.group))
    if len(starts) > 1:
        ends = [number for number, _ in starts[1:]] + [len(versions)]
        labels = _short([group.partition(" ")[2] for _, group in starts])
        return [Tick((start + end) / 2, label) for (start, _), end, label in zip(starts, ends, labels, strict=True)]
    if not versions:
        return []
    places = sorted({0, len(versions) // 4, len(versions) // 2, 3 * len(versions) // 4, len(versions) - 1})
    return [Tick(number + 0.5, f"#{versions[number].snapshot}") for number in places]


def _short(names: Sequence[str]) -> list[str]:
    """Shorten months of one year, such as ``2013-01``, to ``Jan``; leave other names unchanged."""
    matches = [re.fullmatch(r"(\d{4})-(0[1-9]|1[0-2])", name) for name in names]
    months = [match for match in matches if match]
    if len(months) < len(names) or len({match[1] for match in months}) > 1:
        return list(names)
    return [MONTHS[int(match[2]) - 1] for match in months]
