"""Branches, commits, merges, tags, differences, imports and lists over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def pages(client: Any, place: str, **query: Any) -> list[Any]:
    """All rows of a list, page by page; every page's description of itself holds."""
    rows: list[Any] = []
    after = ""
    while True:
        answer = client.ask("GET", place, **query, after=after)
        assert answer.status == 200, answer.body
        page = answer.json["pagination"]
        assert set(page) == {"has_more", "next_offset", "results", "max_per_page"}
        assert page["results"] == len(answer.json["results"])
        assert page["max_per_page"] == 1000
        rows += answer.json["results"]
        if not page["has_more"]:
            assert page["next_offset"] == ""
            return rows
        assert page["results"] == query["amount"]
        after = page["next_offset"]


@pytest.mark.parametrize("amount", [1, 2, 3, 1000])
def test_lists_come_in_pages(client: Any, amount: int) -> None:
    """Every list, taken in pages of any size, holds everything once and in order."""
    for number in range(5):
        client.put(f"dir/{number}")
        client.commit(f"commit {number}")
        client.ask("POST", ":/branches", {"name": f"b{number}", "source": "main"})
        client.ask("POST", ":/tags", {"id": f"t{number}", "ref": "main"})
    paths = [f"dir/{number}" for number in range(5)]
    assert [row["path"] for row in pages(client, ":/refs/main/objects/ls", amount=amount)] == paths
    assert [row["path"] for row in pages(client, ":/refs/main@/objects/ls", amount=amount, prefix="dir/")] == paths
    assert [row["id"] for row in pages(client, ":/branches", amount=amount)] == [*(f"b{n}" for n in range(5)), "main"]
    assert [row["id"] for row in pages(client, ":/branches", amount=amount, prefix="b")] == [f"b{n}" for n in range(5)]
    assert [row["id"] for row in pages(client, ":/tags", amount=amount)] == [f"t{number}" for number in range(5)]
    result = pages(client, ":/refs/main/commits", amount=amount)
    assert [row["message"] for row in result] == [f"commit {n}" for n in range(4, -1, -1)] + ["Repository created"]
    assert [row["path"] for row in pages(client, ":/refs/main~5/diff/main", amount=amount)] == paths
    assert [row["id"] for row in pages(client, "/repositories", amount=amount)] == ["analytics"]
    for number in range(5):
        client.put(f"new/{number}")
    assert [row["path"] for row in pages(client, ":/branches/main/diff", amount=amount)] == [
        f"new/{number}" for number in range(5)
    ]


def test_a_delimiter_folds_folders(client: Any) -> None:
    """Common prefixes stand among objects in order, with the fields that clients require of every row."""
    for path in ("a", "b/1", "b/2/x", "c/1", "d"):
        client.put(path)
    rows = client.ask("GET", ":/refs/main/objects/ls", delimiter="/").json["results"]
    assert [(row["path"], row["path_type"]) for row in rows] == [
        ("a", "object"), ("b/", "common_prefix"), ("c/", "common_prefix"), ("d", "object"),
    ]  # fmt: skip
    assert {"path", "path_type", "physical_address", "checksum", "mtime"} <= set(rows[1])
    assert client.listed(delimiter="/", prefix="b/") == ["b/1", "b/2/"]
    assert client.listed(delimiter="/", after="b/") == ["c/", "d"]
    folded = client.ask("GET", ":/branches/main/diff", delimiter="/").json["results"]
    assert [(row["path"], row["path_type"]) for row in folded][1] == ("b/", "common_prefix")


def test_an_amount_below_one_is_as_many_as_possible(client: Any) -> None:
    """Clients ask for -1 or 0 when they mean a whole page."""
    for number in range(3):
        client.put(str(number))
    assert client.listed(amount=-1) == client.listed(amount=0) == ["0", "1", "2"]


def test_a_commit_tells_what_clients_require(client: Any) -> None:
    """A commit has id, parents, committer, message, time, metarange and metadata, by every route."""
    client.put("a")
    made = client.commit("a message", metadata={"k": "v"}, date=1_700_000_000)
    assert made["message"] == "a message"
    assert made["metadata"] == {"k": "v"}
    assert made["creation_date"] == 1_700_000_000
    assert made["committer"]
    assert len(made["parents"]) == 1
    assert made["meta_range_id"]
    for ref in ("main", made["id"], made["id"][:12], "main@"):
        assert client.ask("GET", f":/commits/{ref}").json == made
    assert client.ask("GET", ":/commits/main~1").json["id"] == made["parents"][0]
    assert client.ask("GET", ":/branches/main").json == {"id": "main", "commit_id": made["id"]}


def test_a_commit_can_be_empty_when_asked(client: Any) -> None:
    """``allow_empty`` makes a commit of nothing."""
    assert client.commit(allow_empty=True)["parents"]


def test_chosen_paths_are_committed_and_the_rest_stays(client: Any) -> None:
    """A commit of some paths leaves the others uncommitted."""
    for path in ("a", "b/1", "b/2", "c"):
        client.put(path)
    client.commit(paths=["a", "b/"])
    assert client.listed(ref="main@") == ["a", "b/1", "b/2"]
    assert [row["path"] for row in client.ask("GET", ":/branches/main/diff").json["results"]] == ["c"]


def test_a_new_branch_is_answered_with_its_commit(client: Any) -> None:
    """The body is the commit's id as text; hidden branches are listed only when asked for."""
    head = client.ask("GET", ":/branches/main").json["commit_id"]
    made = client.ask("POST", ":/branches", {"name": "tx-1", "source": "main", "hidden": True})
    assert (made.status, made.body.decode()) == (201, head)
    assert made.headers["Content-Type"].startswith("text/")
    assert [row["id"] for row in client.ask("GET", ":/branches").json["results"]] == ["main"]
    shown = client.ask("GET", ":/branches", show_hidden="true").json["results"]
    assert [row["id"] for row in shown] == ["main", "tx-1"]
    assert client.ask("DELETE", ":/branches/tx-1").status == 204


def test_a_transaction_as_clients_make_it(client: Any) -> None:
    """Hidden branch, writes, commit, merge, delete: the branch has everything at once, and nothing before."""
    client.ask("POST", ":/branches", {"name": "tx", "source": "main", "hidden": True})
    client.put("a", branch="tx")
    client.put("b", branch="tx")
    assert client.listed() == []
    client.commit("", branch="tx")
    merged = client.ask("POST", ":/refs/tx/merge/main", {"message": "Merge transaction"})
    assert merged.status == 200
    assert client.ask("DELETE", ":/branches/tx").status == 204
    assert client.listed() == ["a", "b"]
    head = client.ask("GET", ":/commits/main").json
    assert (head["id"], head["message"], len(head["parents"])) == (merged.json["reference"], "Merge transaction", 2)


def test_merges_squash_and_say_their_base(client: Any) -> None:
    """A squashed merge has one parent; the merge base of both sides can be asked for."""
    base = client.ask("GET", ":/branches/main").json["commit_id"]
    client.ask("POST", ":/branches", {"name": "dev", "source": "main"})
    client.put("a", branch="dev")
    source = client.commit(branch="dev")["id"]
    document = client.ask("GET", ":/refs/dev/merge/main").json
    assert document == {"source_commit_id": source, "destination_commit_id": base, "base_commit_id": base}
    assert client.ask("POST", ":/refs/dev/merge/main", {"squash_merge": True}).status == 200
    assert client.ask("GET", ":/commits/main").json["parents"] == [base]


def test_a_merge_needs_no_body(client: Any) -> None:
    """An empty body is a merge with all defaults; one that changes nothing is 400."""
    client.ask("POST", ":/branches", {"name": "dev", "source": "main"})
    assert client.ask("POST", ":/refs/dev/merge/main").status == 400
    client.put("a", branch="dev")
    client.commit(branch="dev")
    assert client.ask("POST", ":/refs/dev/merge/main").status == 200


def test_revert_and_cherry_pick(client: Any) -> None:
    """A revert undoes a commit, a cherry-pick repeats one elsewhere; each is a commit of its own."""
    client.ask("POST", ":/branches", {"name": "other", "source": "main"})
    client.put("a")
    made = client.commit("add a")["id"]
    picked = client.ask("POST", ":/branches/other/cherry-pick", {"ref": made})
    assert picked.status == 201
    assert picked.json["message"] == "add a"
    assert client.listed(ref="other") == ["a"]
    assert client.ask("POST", ":/branches/main/revert", {"ref": made, "parent_number": 0}).status == 204
    assert client.listed() == []
    assert made in client.ask("GET", ":/commits/main").json["message"]


def test_resets(client: Any) -> None:
    """What is uncommitted can be given up at a path, below a prefix or all at once; a branch can go elsewhere."""
    client.put("kept")
    first = client.commit()["id"]
    for path in ("a", "b/1", "b/2", "c"):
        client.put(path)
    assert client.ask("PUT", ":/branches/main", {"type": "object", "path": "a"}).status == 204
    assert client.listed() == ["b/1", "b/2", "c", "kept"]
    assert client.ask("PUT", ":/branches/main", {"type": "common_prefix", "path": "b/"}).status == 204
    assert client.listed() == ["c", "kept"]
    assert client.ask("PUT", ":/branches/main", {"type": "reset"}).status == 204
    assert client.listed() == ["kept"]
    assert client.ask("PUT", ":/branches/main/hard_reset", ref="main~1").status == 204
    assert client.listed() == []
    assert client.listed(ref=first) == ["kept"]


def test_the_log_can_be_narrowed(client: Any) -> None:
    """By path, by prefix, in amount, in time, and to first parents."""
    for path in ("a", "b/1", "a2", "b/2"):
        client.put(path)
        client.commit(path)

    def messages(**query: Any) -> list[str]:
        return [row["message"] for row in client.ask("GET", ":/refs/main/commits", **query).json["results"]]

    assert messages(objects="a") == ["a"]
    assert messages(prefixes="b/") == ["b/2", "b/1"]
    limited = client.ask("GET", ":/refs/main/commits", amount=2, limit="true").json
    assert (len(limited["results"]), limited["pagination"]["has_more"]) == (2, False)
    assert messages(stop_at="main~1") == ["b/2", "a2"]
    assert len(messages(first_parent="true")) == 5
    assert messages(since="2999-01-01T00:00:00Z") == []
    assert len(messages(since="2000-01-01")) == 5


def test_tags(client: Any) -> None:
    """A tag names a commit permanently, may have slashes, and can be deleted."""
    head = client.ask("GET", ":/branches/main").json["commit_id"]
    assert client.ask("POST", ":/tags", {"id": "releases/1", "ref": "main"}).json == {
        "id": "releases/1",
        "commit_id": head,
    }
    client.put("a")
    client.commit()
    for shown in ("releases/1", "releases%2F1"):
        assert client.ask("GET", f":/tags/{shown}").json["commit_id"] == head
        assert client.ask("GET", f":/refs/{shown}/objects/ls").json["results"] == []
    assert client.ask("POST", ":/tags", {"id": "releases/1", "ref": "main"}).status == 409
    assert client.ask("DELETE", ":/tags/releases%2F1").status == 204
    assert client.ask("GET", ":/tags/releases/1").status == 404


def test_a_tag_whose_name_holds_the_word_of_the_route_is_compared(client: Any) -> None:
    """On either side, its slashes encoded or not; where the path can be read in two ways, it is refused and says so."""
    assert client.ask("POST", ":/tags", {"id": "v/diff/x", "ref": "main"}).status == 201
    client.put("a")
    client.commit()

    def compared(left: str, right: str) -> list[tuple[str, str]]:
        answer = client.ask("GET", f":/refs/{left}/diff/{right}", type="two_dot")
        assert answer.status == 200, answer.body
        return [(row["type"], row["path"]) for row in answer.json["results"]]

    for tag in ("v/diff/x", "v%2Fdiff%2Fx"):
        assert compared(tag, "main") == [("added", "a")]
        assert compared("main", tag) == [("removed", "a")]
        assert compared(tag, tag) == []
    assert client.ask("GET", ":/refs/main/diff/v/diff/none").status == 404
    for name in ("x/diff/main", "v"):
        assert client.ask("POST", ":/tags", {"id": name, "ref": "main"}).status == 201
    refused = client.ask("GET", ":/refs/v/diff/x/diff/main", type="two_dot")
    assert (refused.status, "%2F" in refused.message) == (400, True)
    assert compared("v%2Fdiff%2Fx", "main") == [("added", "a")]
    assert compared("v", "x%2Fdiff%2Fmain") == []


def test_two_and_three_dots_differ(client: Any) -> None:
    """Three dots: what the right side changed since they parted; two dots: everything that differs."""
    client.ask("POST", ":/branches", {"name": "dev", "source": "main"})
    client.put("left")
    client.commit()
    client.put("right", branch="dev")
    client.commit(branch="dev")

    def rows(**query: Any) -> list[tuple[str, str]]:
        results = client.ask("GET", ":/refs/main/diff/dev", **query).json["results"]
        return [(row["type"], row["path"]) for row in results]

    assert rows() == rows(type="three_dot") == [("added", "right")]
    assert rows(type="two_dot") == [("removed", "left"), ("added", "right")]


def test_a_repository_and_its_settings(client: Any) -> None:
    """Metadata, rules of retention and protection are set, read and removed; a deleted repository is gone."""
    assert client.ask("GET", ":/metadata").json == {}
    assert client.ask("POST", ":/metadata", {"metadata": {"team": "data"}}).status == 204
    assert client.ask("POST", ":/metadata", {"metadata": {"k": "v"}}).status == 204
    assert client.ask("GET", ":/metadata").json == {"team": "data", "k": "v"}
    rules = {"default_retention_days": 7, "branches": [{"branch_id": "main", "retention_days": 30}]}
    assert client.ask("PUT", ":/settings/gc_rules", rules).status == 204
    assert client.ask("GET", ":/settings/gc_rules").json == rules
    assert client.ask("DELETE", ":/settings/gc_rules").status == 204
    assert client.ask("GET", ":/settings/gc_rules").status == 404
    assert client.ask("DELETE", ":").status == 204
    assert client.ask("GET", ":").status == 404
    assert client.ask("GET", ":/branches").status == 404


def test_an_import_brings_objects_without_copying(
    serve: Callable[..., Any], connect: Callable[[Any], Any], tmp_path: Path
) -> None:
    """An import answers at once, can be asked about until it has committed, and reads the objects where they are."""
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "one").write_bytes(b"1")
    (source / "sub" / "two").write_bytes(b"22")
    client = connect(serve(import_from=[str(source)]))
    client.ask("POST", "/repositories", {"name": "analytics", "storage_namespace": "local://analytics"})
    location = {"type": "common_prefix", "path": f"local://{source}/", "destination": "in/"}
    started = client.ask(
        "POST", ":/branches/main/import", {"paths": [location], "commit": {"message": "bring", "metadata": {"k": "v"}}}
    )
    assert started.status == 202
    for _ in range(10_000):
        status = client.ask("GET", ":/branches/main/import", id=started.json["id"]).json
        assert "error" not in status, status
        if status["completed"]:
            break
    assert status["completed"]
    assert status["ingested_objects"] == 2
    assert status["commit"]["message"] == "bring"
    assert status["metarange_id"] == status["commit"]["meta_range_id"]
    assert client.listed() == ["in/one", "in/sub/two"]
    assert client.get("in/sub/two").body == b"22"
    assert client.ask("DELETE", ":/branches/main/import", id=started.json["id"]).status == 409


def test_only_allowed_places_are_imported(client: Any, tmp_path: Path) -> None:
    """The role write does not suffice to read the server's files by importing or staging them."""
    (tmp_path / "private").write_bytes(b"private")
    for kind, path in (("object", tmp_path / "private"), ("common_prefix", tmp_path)):
        location = {"type": kind, "path": f"local://{path}", "destination": "in"}
        answer = client.ask("POST", ":/branches/main/import", {"paths": [location], "commit": {"message": "m"}})
        assert answer.status == 400, answer.body
        assert "allow" in answer.message
    link = {"physical_address": f"file://{tmp_path / 'private'}", "checksum": "x", "size_bytes": 7}
    assert client.ask("PUT", ":/branches/main/objects", link, path="in").status == 400
    assert client.listed() == []
