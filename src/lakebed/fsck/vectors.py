"""The check of deletion vectors: each names a live file, and (with ``deep``) decodes and marks rows that exist.

Invariant: a vector that many versions share is read once. A vector whose file is gone is a warning: readers ignore it.
"""

from __future__ import annotations

from collections.abc import Container

from lakebed.fsck.model import Findings
from lakebed.objects.path import is_url
from lakebed.table.branch.context import TableBranch
from lakebed.table.model.model import Snapshot
from lakebed.table.read.vectors import load_positions, vectors_of

Seen = set[tuple[str, int]]


def check_vectors(
    branch: TableBranch, snapshot: Snapshot, findings: Findings, *, seen: Seen, listed: Container[str], called: str
) -> None:
    """Check the vectors of a version and report into `findings`.

    Args:
        branch: that reads manifests from the store.
        seen: index files and offsets that were checked with another version; the new ones are added.
        listed: the objects of the table; a missing index file is reported elsewhere.
        called: the version in messages.
    """
    fresh = {
        name: place for name, place in vectors_of(branch, snapshot).items() if (place.path, place.offset) not in seen
    }
    if not fresh:
        return
    seen.update((place.path, place.offset) for place in fresh.values())
    live = branch.manifests.live_entries(snapshot)
    counts = dict(zip(live["file_name"].to_pylist(), live["row_count"].to_pylist(), strict=True))
    for name, place in fresh.items():
        if name not in counts:
            findings.add("warning", "stale_vector", place.path, f"marks rows of {name}, which {called} does not have.")
            continue
        if not findings.report.deep or not (is_url(place.path) or place.path in listed):
            continue
        with findings.reading(place.path, needed_by=called):
            positions = load_positions(branch.store, place)
            if len(positions) and int(positions[-1]) >= counts[name]:
                sentence = f"marks row {int(positions[-1]):,} of {name}, which has {counts[name]:,} rows."
                findings.error("wrong_vector", place.path, sentence)
            elif place.cardinality not in (None, len(positions)):
                sentence = f"marks {len(positions):,} rows of {name}; its manifest says {place.cardinality:,}."
                findings.error("wrong_vector", place.path, sentence)
