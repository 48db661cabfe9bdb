"""Small objects that are stored together: each with an outcome of its own, durable before it is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lakebed import repo
from lakebed.errors import Corruption, InvalidRequest, LakebedError, NotFound, OutcomeUnknown
from lakebed.objects import open_store
from lakebed.objects.create_once import put_new_each
from lakebed.repo.heads.uploads import SmallUpload, upload_many
from lakebed.repo.model.model import Entry
from lakebed.repo.objects import data
from lakebed.repo.records.context import RepositoryContext, make_context
from lakebed.repo.transport.transport import context_of
from lakebed.testing import PowerLossStore
from lakebed.testing.wrapper import Call


def upload(path: str, body: bytes, **metadata: str) -> SmallUpload:
    """An object of a client."""
    return SmallUpload(path, lambda: body, "text/plain", metadata)


def broken(path: str) -> SmallUpload:
    """An object whose bytes are not those that its client announced."""

    def read() -> bytes:
        raise Corruption("The body is not what its checksum says.", kind="BadDigest")

    return SmallUpload(path, read, "text/plain", {})


def kinds(outcomes: list[Entry | LakebedError]) -> list[str]:
    """Kinds of errors; empty for an entry."""
    return [outcome.kind if isinstance(outcome, LakebedError) else "" for outcome in outcomes]


def test_each_upload_has_its_own_outcome() -> None:
    """What is wrong with one is told of that one; the others are stored, and the last of one path stays."""
    with repo.open("memory://each/analytics.repo", create=True) as opened:
        branch = opened.branch("main")
        uploads = [upload("a", b"1"), broken("b"), upload("a", b"2"), upload("\x00", b"3"), upload("c", b"4", k="v")]
        outcomes = upload_many(context_of(opened), "main", uploads)
        assert kinds(outcomes) == ["", "BadDigest", "", "invalid_path", ""]
        assert {path: branch.get(path) for path in ("a", "c")} == {"a": b"2", "c": b"4"}
        assert branch.stat("c").metadata == {"k": "v"}
        assert [line.path for line in branch.list()] == ["a", "c"]
        missing = upload_many(context_of(opened), "missing", [upload("a", b"1"), upload("b", b"1")])
        assert kinds(missing) == ["branch_not_found"] * 2


def test_bytes_are_durable_before_they_are_named() -> None:
    """A power loss right behind the uploads takes none of their bytes."""
    store = PowerLossStore(open_store("memory://durable"))
    with repo.open("memory://names/analytics.repo", create=True) as opened:
        context = context_of(opened)
        powered = make_context("analytics", context.record, store=store, key_value=context.key_value)
        outcomes = upload_many(powered, "main", [upload(f"path/{number}", b"x" * number) for number in range(5)])
        assert store.power_loss() == []
        for number, entry in enumerate(outcomes):
            assert isinstance(entry, Entry)
            assert bytes(data.read(powered, entry)) == b"x" * number


class _LosesReply(PowerLossStore):
    """Does not answer its second put."""

    put_count = 0

    def intercept(self, call: Call, perform: Callable[[], Any]) -> Any:
        """Make the call, and lose the reply."""
        result = super().intercept(call, perform)
        if call.kind == "put":
            self.put_count += 1
            if self.put_count == 2:
                raise OutcomeUnknown("no answer", kind="lost")
        return result


def test_a_lost_reply_makes_no_bytes_less_durable() -> None:
    """What was put before is put again, is there, and is synced with the rest."""
    store = _LosesReply(open_store("memory://lost"))
    put_new_each(store, [(f"data/{number}", b"x") for number in range(3)])
    assert store.power_loss() == []
    assert [meta.path for meta in store.list()] == ["data/0", "data/1", "data/2"]


class _Unclear:
    """Records whose writes are made and not answered, one after another."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.writes = 0

    def put_columns(self, keys: Any, values: Any, **expected: Any) -> None:
        """Lose the write; a reader cannot tell either."""
        self.writes += 1
        raise OutcomeUnknown("no answer", kind="lost")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return getattr(self._inner, name)  # type: ignore[no-any-return]


def test_an_unclear_write_is_not_made_again_one_by_one() -> None:
    """All get its error: another writer may have replaced the rows meanwhile."""
    with repo.open("memory://unclear/analytics.repo", create=True) as opened:
        context = context_of(opened)
        records = _Unclear(context.key_value)
        unclear: RepositoryContext = make_context(
            "analytics",
            context.record,
            store=context.store,
            key_value=records,  # type: ignore[arg-type]
        )
        with pytest.raises(OutcomeUnknown):
            upload_many(unclear, "main", [upload(path, b"1") for path in "abc"])
        assert records.writes == 1
        assert list(opened.branch("main").list()) == []


def test_metadata_of_one_does_not_stop_the_others() -> None:
    """It is too large for an entry."""
    with repo.open("memory://metadata/analytics.repo", create=True) as opened:
        uploads = [upload("a", b"1", k="v" * (1 << 20)), upload("b", b"2")]
        assert kinds(upload_many(context_of(opened), "main", uploads)) == ["invalid_metadata", ""]
        with pytest.raises(NotFound):
            opened.branch("main").get("a")
        with pytest.raises(InvalidRequest):
            data.check_metadata({"k": "v" * (1 << 20)})
