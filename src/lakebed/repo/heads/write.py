"""Writing to a branch: puts, deletes, prefixes, batches.

Owns: the verbs. `lakebed.repo.staging.entries` checks what may be staged. `lakebed.repo.staging.protocol` makes each
try so that nothing is lost.

Invariants:
- A write is acknowledged only if its row was in the branch's staging token at the moment of the write.
- A staged entry is removed without a tombstone only if no older layer has the path, in a change that expects the
  record. Otherwise a compaction that has read the entry would bring it back.
- A staged upload is not older than the boundary, so a collection never deletes bytes that an entry begins to name.
- An address outside the repository is staged only if it may be imported (`lakebed.repo.outside.foreign`), whatever the
  verb.
- `delete_prefix` writes no row: it seals, and the fresh token hides the layers below it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec
import pyarrow as pa

from lakebed.errors import AlreadyExists, Conflict, InvalidRequest, NotFound
from lakebed.repo.heads.heads import fold
from lakebed.repo.model.columns import check_pairs
from lakebed.repo.model.entry import decode_entry
from lakebed.repo.model.model import TOMBSTONE, Entry
from lakebed.repo.model.names import check_path, check_prefix
from lakebed.repo.model.rows import prefix_range
from lakebed.repo.outside.foreign import is_foreign
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.records import encode_record, new_token, write_unique
from lakebed.repo.staging.entries import check_entry, pairs_of, validate_columns
from lakebed.repo.staging.protocol import (
    WriteAttempts,
    WritePrecondition,
    check_only_unexpected,
    replace_rows,
    write_rows,
)
from lakebed.repo.staging.view import View


def stage(context: RepositoryContext, *, branch: str, path: str, entry: Entry) -> None:
    """Give a path an entry, whatever was there.

    Raises:
        NotFound: kind ``branch_not_found``.
        InvalidRequest: the path, the entry or the branch is not writable (``invalid_path``, ``reserved_path``,
            ``invalid_address``, ``import_not_allowed``, ``oversized_metadata``, ``protected_branch``, ...).
        Conflict: kind ``branch_moved``: the branch was sealed at every try; ``upload_expired``: the entry's bytes were
            uploaded so long ago that a collection may have taken them.
        OutcomeUnknown: the store did not say whether it was written.
    Cost: 2 peeks and 1 write of the key-value store.
    """
    key = check_path(path, writing=True)
    value, ulid = _check_entry(context, entry, path)
    attempts = WriteAttempts(context, branch, operation="stage")
    while True:
        precondition = attempts.look()
        check_age(ulid, precondition.boundary)
        if write_rows(context, [precondition.token_prefix + key], [value], expected=precondition.on_both):
            context.counters.count(branch, precondition.record.staging.id, entries=1)
            return


def stage_if_absent(
    context: RepositoryContext, *, branch: str, path: str, entry: Entry, requires: Sequence[str] = ()
) -> None:
    """Give a path an entry, if nothing is visible there.

    If the visible entry has the same address, an earlier try of this call or of its caller wrote it, and the reply was
    lost. That counts as success, even if the entry has been committed since.

    Args:
        requires: other paths that must have entries, because the bytes name them.

    Raises:
        AlreadyExists: kind ``path_exists``: another entry is visible.
        Conflict: kind ``path_gone``: a path that is required has no entry.
        Otherwise as `stage`.
    Cost: 1 snapshot, 1 read a token and 1 of the committed data, 1 write.
    """

    def refuse(visible: Entry | None) -> None:
        if visible is not None:
            raise path_exists(context, branch, path)

    _stage_unless(context, branch, path, entry, operation="stage_if_absent", refuse=refuse, requires=requires)


def stage_if_match(
    context: RepositoryContext, *, branch: str, path: str, entry: Entry, matches: Callable[[Entry | None], bool]
) -> None:
    """Give a path an entry, if the entry visible there is the one that the caller expects (None: there is none).

    An entry with the same address counts as expected, as in `stage_if_absent`.

    Raises:
        Conflict: kind ``path_changed``: something else is visible; otherwise as `stage`.
        Otherwise as `stage`.
    Cost: as `stage_if_absent`.
    """

    def refuse(visible: Entry | None) -> None:
        if not matches(visible):
            raise Conflict(
                f"{path!r} on branch {branch} of repository {context.name} is not what was expected there: read it "
                "again.",
                kind="path_changed",
                branch=branch,
                path=path,
            )

    _stage_unless(context, branch, path, entry, operation="stage_if_match", refuse=refuse)


def _stage_unless(
    context: RepositoryContext,
    branch: str,
    path: str,
    entry: Entry,
    *,
    operation: str,
    refuse: Callable[[Entry | None], None],
    requires: Sequence[str] = (),
) -> None:
    """Stage an entry, atomically with the checks that `refuse` accepts what is visible, and that `requires` is."""
    key = check_path(path, writing=True)
    required = [check_path(other) for other in requires]
    value, ulid = _check_entry(context, entry, path)
    attempts = WriteAttempts(context, branch, operation=operation)

    def look(view: View) -> tuple[bytes | None, bytes | None, list[bytes | None]]:
        [(newest, lower)] = view.layers_of([key])
        return newest, lower, view.values(required) if required else []

    while True:
        (newest, lower, others), precondition = attempts.read(look)
        raw = lower if newest is None else newest or None
        visible = None if raw is None else decode_entry(raw, where=path)
        if visible is not None and visible.address == entry.address:
            return
        refuse(visible)
        if None in others:
            raise _path_gone(context, branch, path, requires[others.index(None)])
        check_age(ulid, precondition.boundary)
        if _write_decided(context, precondition, key, value, newest):
            context.counters.count(branch, precondition.record.staging.id, entries=1)
            return


def _write_decided(
    context: RepositoryContext, precondition: WritePrecondition, path: bytes, value: bytes, newest: bytes | None
) -> bool:
    """Stage a value that was decided by what the branch shows. Returns whether the state was unchanged.

    Args:
        newest: the value that the staging token has at the path.
    """
    staged_key = precondition.token_prefix + path
    mark, note = precondition.mark
    return write_rows(context, [staged_key, mark], [value, note], expected={**precondition.on_both, staged_key: newest})


def update_metadata(context: RepositoryContext, *, branch: str, path: str, metadata: dict[str, str]) -> Entry:
    """Replace the user's own metadata of what a branch shows at a path; the bytes and all else stay.

    The address may be older than the boundary of a collection: it is that of what the branch shows in the moment of the
    write, so a collection keeps it.

    Returns:
        The entry as it is now.

    Raises:
        NotFound: kind ``branch_not_found``, ``path_not_found``.
        InvalidRequest, Conflict, OutcomeUnknown: as `stage`.
    Cost: as `stage_if_absent`.
    """
    key = check_path(path, writing=True)
    attempts = WriteAttempts(context, branch, operation="update_metadata")
    while True:
        [(newest, lower)], precondition = attempts.read(lambda view: view.layers_of([key]))
        raw = lower if newest is None else newest or None
        if raw is None:
            raise NotFound(
                f"Branch {branch} of repository {context.name} has nothing at {path!r}.",
                kind="path_not_found",
                path=path,
            )
        entry = msgspec.structs.replace(decode_entry(raw, where=path), metadata=metadata)
        value, _ = check_entry(entry, path)
        if _write_decided(context, precondition, key, value, newest):
            context.counters.count(branch, precondition.record.staging.id, entries=1)
            return entry


def stage_many(
    context: RepositoryContext, *, branch: str, entries: Iterable[tuple[str, Entry]] | pa.RecordBatch | pa.Table
) -> int:
    """Give many paths entries, in one atomic change; of a path that repeats the last counts.

    Args:
        entries: pairs of path and entry; or columns ``path``, ``address``, ``checksum`` (text), ``size_bytes``,
            ``modified_ms`` (integers) and, if there are any, ``content_type`` (text) and ``metadata`` (map of texts).

    Returns:
        How many paths were written.

    Raises:
        InvalidRequest: as `stage`; ``invalid_columns``, ``wrong_type``; ``oversized_write``: it is too much for one
            change. Otherwise as `stage`. Nothing was written then.
    Cost: 1 write of the key-value store; about 3 us an entry.
    """
    pairs = list(pairs_of(entries)) if isinstance(entries, pa.RecordBatch | pa.Table) else check_pairs(entries)
    paths, column, oldest = validate_columns(pairs)
    context.foreign.check(entry.address for _, entry in pairs if is_foreign(entry.address))
    attempts = WriteAttempts(context, branch, operation="stage_many")
    while True:
        precondition = attempts.look()
        check_age(oldest, precondition.boundary)
        if not paths:
            return 0
        prefix = precondition.token_prefix
        keys = [prefix + path for path in paths]
        if write_rows(context, keys, column, expected=precondition.on_both):
            context.counters.count(branch, precondition.record.staging.id, entries=len(paths))
            return len(paths)


def delete(context: RepositoryContext, *, branch: str, path: str) -> bool:
    """Delete a path.

    Returns:
        Whether it was there; if not, nothing is written.

    Raises:
        NotFound, InvalidRequest, Conflict, OutcomeUnknown: as `stage`.
    Cost: 1 snapshot, 1 read a token and 1 of the committed data, 1 write.
    """
    return delete_many(context, branch=branch, paths=[path]) == 1


def delete_many(
    context: RepositoryContext, *, branch: str, paths: Iterable[str], addresses: Iterable[str] | None = None
) -> int:
    """Delete many paths in one atomic change.

    A tombstone is written where an older layer has the path, or could not be seen to have none; an entry that only the
    staging token has is removed.

    Args:
        addresses: of the entries that the caller has seen, one a path. A path that shows an entry with another address
            was written since. None: whatever is there is deleted.

    Returns:
        How many of them were there.

    Raises:
        Conflict: kind ``path_changed``, with the fact ``paths``: others have written to these since. Nothing was
            deleted.
        NotFound, InvalidRequest, Conflict, OutcomeUnknown: as `stage`.
    Cost: 1 snapshot, 1 read a token for all paths together, the ranges that may have them, 1 write.
    """
    checked = [check_path(path, writing=True) for path in paths]
    checked_paths = list(dict.fromkeys(checked))
    seen = None if addresses is None else dict(_pair_addresses(checked, addresses))
    attempts = WriteAttempts(context, branch, operation="delete")
    while True:
        layers, precondition = attempts.read(lambda view: view.layers_of(checked_paths))
        if seen is not None:
            _check_unchanged(context, branch, seen, layers)
        prefix = precondition.token_prefix
        buried: list[bytes] = []
        removals: dict[bytes, bytes | None] = {}
        for path, (newest, lower) in zip(checked_paths, layers, strict=True):
            if newest == TOMBSTONE or (newest is None and lower is None):
                continue
            if lower is None:
                removals[prefix + path] = newest
            else:
                buried.append(prefix + path)
        if not buried and not removals:
            return 0
        # A delete of what was seen was decided by what the branch shows.
        puts = buried if seen is None or not buried else [*buried, precondition.mark[0]]
        # No address is named, so the boundary does not matter.
        if removals:
            is_done = replace_rows(
                context, [(key, TOMBSTONE) for key in puts], removals, expected=precondition.on_branch
            )
        else:
            is_done = write_rows(context, puts, [TOMBSTONE] * len(puts), expected=precondition.on_branch)
        if is_done:
            context.counters.count(
                branch, precondition.record.staging.id, entries=-len(removals), tombstones=len(buried)
            )
            return len(buried) + len(removals)


def _pair_addresses(paths: Sequence[bytes], addresses: Iterable[str]) -> Iterator[tuple[bytes, str]]:
    """Each path with its address. Raises `InvalidRequest` (``wrong_type``): there are more of one than of the other."""
    values = list(addresses)
    if len(values) != len(paths):
        raise InvalidRequest(
            f"There are {len(paths):,} paths and {len(values):,} addresses: give one address for each path.",
            kind="wrong_type",
        )
    return zip(paths, values, strict=True)


def _check_unchanged(
    context: RepositoryContext,
    branch: str,
    addresses_seen: Mapping[bytes, str],
    layers: Iterable[tuple[bytes | None, bytes | None]],
) -> None:
    """Raise `Conflict` (``path_changed``) if a path shows an entry with another address than the one seen."""
    changed = []
    for (key, address), (newest, below) in zip(addresses_seen.items(), layers, strict=True):
        raw, path = below if newest is None else newest or None, key.decode()
        if raw is not None and decode_entry(raw, where=path).address != address:
            changed.append(path)
    if changed:
        more = f" and {len(changed) - 1:,} more" if len(changed) > 1 else ""
        raise Conflict(
            f"Others have written to {changed[0]!r}{more} on branch {branch} of repository {context.name} since they "
            "were read to be deleted. Nothing was deleted: look at them, and try again.",
            kind="path_changed",
            branch=branch,
            paths=changed,
        )


def delete_prefix(context: RepositoryContext, *, branch: str, prefix: str) -> bool:
    """Delete everything below a prefix; ``""``: everything. What is written afterwards is not hidden.

    Returns:
        Whether anything was there; if not, nothing changes.

    Raises:
        NotFound, InvalidRequest, OutcomeUnknown: as `stage`.
        Conflict: kind ``branch_moved``: others changed the branch at every try.
    Cost: 1 snapshot, a listing up to its first entry, 1 write of the branch's record, however much is taken away. A
    branch with too many sealed tokens is compacted first.
    """
    start, end = prefix_range(check_prefix(prefix, writing=True))
    attempts = WriteAttempts(context, branch, operation="delete_prefix")
    while True:
        first, precondition = attempts.read(lambda view: next(view.rows(start or None, end), None))
        if first is None:
            return False
        record = precondition.record
        is_long = len(record.sealed) >= context.options.sealed_tokens_max
        if is_long and fold(context, branch, operation="delete_prefix"):
            continue
        token = new_token(context.environment, clears=prefix)
        after = msgspec.structs.replace(record, staging=token, sealed=(record.staging, *record.sealed))
        try:
            puts = [(context.keys.branch(branch), encode_record(after))]
            write_unique(context.key_value, puts, expected=precondition.on_branch)
        except Conflict as error:
            check_only_unexpected(error)
            continue
        context.counters.count(branch, token.id, tombstones=1)
        context.counters.count_seal(branch)
        return True


def path_exists(context: RepositoryContext, branch: str, path: str) -> AlreadyExists:
    """The error of a conditional put that came too late."""
    return AlreadyExists(
        f"{path!r} exists already on branch {branch} of repository {context.name}, and the write requires that it "
        "does not.",
        kind="path_exists",
        branch=branch,
        path=path,
    )


def _path_gone(context: RepositoryContext, branch: str, path: str, required: str) -> Conflict:
    return Conflict(
        f"{required!r}, which {path!r} names, is not on branch {branch} of repository {context.name} any more: it was "
        "deleted, or the branch was reset or merged. Nothing was written.",
        kind="path_gone",
        branch=branch,
        path=required,
    )


def _check_entry(context: RepositoryContext, entry: Entry, path: str) -> tuple[bytes, str | None]:
    """An entry as `check_entry` has it, if its address may be named: a client says where the bytes are."""
    value, ulid = check_entry(entry, path)
    if ulid is None:
        context.foreign.check([entry.address])
    return value, ulid


def check_age(ulid: str | None, boundary: bytes | None) -> None:
    """Refuse an upload that is not safe from a collection any more. Raises `Conflict` (``upload_expired``)."""
    if ulid is not None and boundary is not None and ulid.encode() < boundary:
        raise Conflict(
            f"The upload {ulid} is so old that a collection of unused objects may have deleted it: upload it again.",
            kind="upload_expired",
            address=ulid,
        )
