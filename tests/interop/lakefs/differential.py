"""Run random programs of REST calls against lakeFS and against `lakebed serve`, and compare statuses and bodies.

    .venv/bin/python tests/interop/lakefs/differential.py [--programs 40] [--seed 1] [--steps 40]

Each program works in a repository of its own on both servers. What no two servers have in common is left out: ids of
commits stand for the order in which they came up, and times, addresses and sentences of errors do not count. A program
ends at its first difference that ``differential.toml`` does not list; then steps are taken out of it as long as it
still ends so, and what is left is printed. A listed difference is passed over.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

import urllib3

sys.path.insert(0, str(Path(__file__).parents[3] / "bench" / "peers"))

from lakefs_server import Place, lakebed_server, lakefs_server

_KNOWN: Final = Path(__file__).with_suffix(".toml")
_BRANCHES: Final = ("main", "dev", "b-2", "B", "b_3", "missing")
_TAGS: Final = ("v1", "v1.0", "v2", "dev-tag")
_PATHS: Final = (
    "a", "a/b", "a/b/c", "a//b", "a b", "a+b", "a%2Fb", "ü/ö", "z/", "A", "a.b/c", "😀", "~", "a/b.csv", "a-b", "a!b",
    "b/1", "b/2", "b/10",
)  # fmt: skip
_PREFIXES: Final = ("", "a", "a/", "a//", "b/", "b/1", "ü", "none/", "a b")
_SHRINKS_MAX: Final = 200


@dataclass(frozen=True)
class Step:
    """A call. Texts may hold ``{0}``, ``{1}``, ...: the commits that came up so far.

    Attributes:
        query: of names and values; of objects the paths too.
        body: JSON, or the text of an object.
    """

    name: str
    method: str
    place: str
    query: tuple[tuple[str, str], ...] = ()
    body: Any = None

    def __str__(self) -> str:
        query = "?" + urlencode(self.query, encoding="utf-8") if self.query else ""
        return f"{self.name}: {self.method} {self.place}{query} {'' if self.body is None else json.dumps(self.body)}"


@dataclass(frozen=True)
class Answer:
    """What counts of a reply."""

    status: int
    body: Any


class Side:
    """One server, a repository at a time."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._headers = urllib3.make_headers(basic_auth=f"{place.access_key}:{place.secret}")
        self._pool = urllib3.PoolManager(retries=False, timeout=60)
        self._repository = ""
        self._commits: list[str] = []

    def begin(self, repository: str) -> None:
        """Make a repository."""
        self._repository, self._commits = repository, []
        body = {"name": repository, "storage_namespace": f"local://{repository}", "default_branch": "main"}
        reply = self._send("POST", f"{self._place.endpoint}/api/v1/repositories", body)
        assert reply.status == 201, reply.data
        head = self._send("GET", self._url("/branches/main"), None).json()
        self._commits.append(head["commit_id"])

    def run(self, step: Step) -> Answer:
        """Make a call."""
        place = self._fill(step.place)
        query = [(name, self._fill(value)) for name, value in step.query]
        body = json.loads(self._fill(json.dumps(step.body))) if isinstance(step.body, dict) else step.body
        url = self._url(place) + ("?" + urlencode(query, quote_via=quote) if query else "")
        reply = self._send(step.method, url, body)
        if reply.status >= 400:
            return Answer(reply.status, None)
        if step.name == "read":
            return Answer(reply.status, reply.data.decode())
        answer = self._plain(reply.json()) if reply.data[:1] in (b"{", b"[") else None
        if step.name == "uncommitted" and answer is not None:
            # The description says: the size of the deleted entry. lakeFS knows no size of what is staged as deleted.
            for change in answer["results"]:
                if change["type"] == "removed":
                    del change["size_bytes"]
        return Answer(reply.status, answer)

    def _send(self, method: str, url: str, body: Any) -> urllib3.BaseHTTPResponse:
        if isinstance(body, str):
            headers = self._headers | {"Content-Type": "text/plain"}
            return self._pool.request(method, url, body=body.encode(), headers=headers)
        return self._pool.request(method, url, json=body, headers=self._headers)

    def _url(self, place: str) -> str:
        return f"{self._place.endpoint}/api/v1/repositories/{self._repository}{place}"

    def _fill(self, text: str) -> str:
        for index, commit in enumerate(self._commits):
            text = text.replace(f"{{{index}}}", commit)
        return text

    def _plain(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._plain(item) for item in value]
        if not isinstance(value, dict):
            # Where a log goes on, ours adds more to the commit: clients hand it back as it is.
            commit = value.partition(".")[0] if isinstance(value, str) else value
            return self._number(commit) if _is_commit(commit) else value
        plain = {}
        for name, item in value.items():
            if name not in _LEFT_OUT and not (name == "metadata" and not item):
                plain[name] = self._plain(item)
        return plain

    def _number(self, commit: str) -> str:
        if commit not in self._commits:
            self._commits.append(commit)
        return f"{{{self._commits.index(commit)}}}"


_LEFT_OUT: Final = frozenset(
    ("creation_date", "mtime", "physical_address", "meta_range_id", "committer", "physical_address_expiry", "version",
     "generation", "max_per_page")
)  # fmt: skip


def _is_commit(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 64 and all(digit in "0123456789abcdef" for digit in value)


class Writer:
    """Makes the steps of a program."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._count = 1
        """Of commits that are known to be there in most runs."""

    def program(self, count: int) -> list[Step]:
        """A program of so many steps."""
        steps = [self._write_object() for _ in range(4)]
        kinds: list[tuple[int, Callable[[], Step]]] = [
            (10, self._write_object), (4, self._delete), (6, self._read), (8, self._list), (7, self._commit),
            (4, self._branch), (1, self._delete_branch), (5, self._merge), (4, self._diff), (3, self._uncommitted),
            (3, self._log), (2, self._tag), (2, self._names), (3, self._revert), (3, self._pick), (3, self._reset),
            (2, self._copy), (2, self._delete_many), (1, self._hard_reset),
        ]  # fmt: skip
        weights, makers = zip(*kinds, strict=True)
        steps += [maker() for maker in self._rng.choices(makers, weights, k=count)]
        return steps

    def _pick_one(self, values: Sequence[str]) -> str:
        return self._rng.choice(values)

    def _branch_name(self) -> str:
        return self._rng.choices(_BRANCHES, (8, 6, 3, 1, 1, 1))[0]

    def _reference(self) -> str:
        kind = self._rng.randrange(10)
        if kind < 6:
            return self._branch_name()
        if kind == 6:
            return self._pick_one(_TAGS)
        if kind == 7:
            return f"{self._branch_name()}~{self._rng.randrange(4)}"
        if kind == 8:
            return f"{self._branch_name()}@"
        return f"{{{self._rng.randrange(self._count)}}}"

    def _write_object(self) -> Step:
        query = (("path", self._pick_one(_PATHS)),)
        text = f"content {self._rng.randrange(6)}"
        return Step("write", "POST", f"/branches/{self._branch_name()}/objects", query, text)

    def _delete(self) -> Step:
        return Step("delete", "DELETE", f"/branches/{self._branch_name()}/objects", (("path", self._pick_one(_PATHS)),))

    def _delete_many(self) -> Step:
        paths = self._rng.sample(_PATHS, 4)
        return Step("delete many", "POST", f"/branches/{self._branch_name()}/objects/delete", (), {"paths": paths})

    def _read(self) -> Step:
        name, place = self._rng.choice((("read", "objects"), ("stat", "objects/stat")))
        return Step(name, "GET", f"/refs/{quote(self._reference())}/{place}", (("path", self._pick_one(_PATHS)),))

    def _list(self) -> Step:
        query = [("prefix", self._pick_one(_PREFIXES)), ("amount", str(self._rng.choice((1, 2, 5, 100))))]
        if self._rng.random() < 0.5:
            query.append(("delimiter", "/"))
        if self._rng.random() < 0.4:
            # Behind a path inside a folder lakeFS shows the folder, although nothing follows in it.
            after = self._pick_one(_PATHS)
            query.append(("after", after.partition("/")[0] if len(query) > 2 else after))
        return Step("list", "GET", f"/refs/{quote(self._reference())}/objects/ls", tuple(query))

    def _commit(self) -> Step:
        self._count += 1
        message = f"commit {self._count}"
        return Step("commit", "POST", f"/branches/{self._branch_name()}/commits", (), {"message": message})

    def _branch(self) -> Step:
        body = {"name": self._branch_name(), "source": self._reference()}
        return Step("branch", "POST", "/branches", (), body)

    def _delete_branch(self) -> Step:
        return Step("delete branch", "DELETE", f"/branches/{self._branch_name()}")

    def _merge(self) -> Step:
        body: dict[str, Any] = {"message": "merge"}
        if self._rng.random() < 0.4:
            body["strategy"] = self._rng.choice(("source-wins", "dest-wins"))
        self._count += 1
        return Step("merge", "POST", f"/refs/{quote(self._reference())}/merge/{self._branch_name()}", (), body)

    def _diff(self) -> Step:
        query = [("type", self._rng.choice(("two_dot", "three_dot")))]
        if self._rng.random() < 0.3:
            query.append(("prefix", self._pick_one(_PREFIXES)))
        if self._rng.random() < 0.3:
            query.append(("delimiter", "/"))
        place = f"/refs/{quote(self._reference())}/diff/{quote(self._reference())}"
        return Step("diff", "GET", place, tuple(query))

    def _uncommitted(self) -> Step:
        query = (("prefix", self._pick_one(_PREFIXES)),) if self._rng.random() < 0.4 else ()
        return Step("uncommitted", "GET", f"/branches/{self._branch_name()}/diff", query)

    def _log(self) -> Step:
        query = (("amount", str(self._rng.choice((1, 3, 100)))),)
        return Step("log", "GET", f"/refs/{quote(self._reference())}/commits", query)

    def _tag(self) -> Step:
        if self._rng.random() < 0.3:
            return Step("delete tag", "DELETE", f"/tags/{self._pick_one(_TAGS)}")
        return Step("tag", "POST", "/tags", (), {"id": self._pick_one(_TAGS), "ref": self._reference()})

    def _names(self) -> Step:
        query = (("prefix", self._pick_one(("", "b", "v1", "d"))), ("amount", str(self._rng.choice((1, 2, 100)))))
        return Step("names", "GET", self._rng.choice(("/branches", "/tags")), query)

    def _revert(self) -> Step:
        self._count += 1
        body = {"ref": self._reference(), "parent_number": self._rng.choice((0, 0, 1, 2))}
        return Step("revert", "POST", f"/branches/{self._branch_name()}/revert", (), body)

    def _pick(self) -> Step:
        self._count += 1
        body: dict[str, Any] = {"ref": self._reference()}
        if self._rng.random() < 0.3:
            body["parent_number"] = self._rng.choice((1, 2))
        return Step("cherry-pick", "POST", f"/branches/{self._branch_name()}/cherry-pick", (), body)

    def _reset(self) -> Step:
        body = self._rng.choice(
            (
                {"type": "reset"},
                {"type": "object", "path": self._pick_one(_PATHS)},
                {"type": "common_prefix", "path": self._pick_one(_PREFIXES[1:])},
            )
        )
        return Step("reset", "PUT", f"/branches/{self._branch_name()}", (), body)

    def _hard_reset(self) -> Step:
        return Step("hard reset", "PUT", f"/branches/{self._branch_name()}/hard_reset", (("ref", self._reference()),))

    def _copy(self) -> Step:
        body = {"src_path": self._pick_one(_PATHS), "src_ref": self._reference()}
        query = (("dest_path", self._pick_one(_PATHS)),)
        return Step("copy", "POST", f"/branches/{self._branch_name()}/objects/copy", query, body)


@dataclass(frozen=True)
class Difference:
    """Where a program ended."""

    step: Step
    ours: Answer
    lakefs: Answer

    def is_like(self, other: Difference) -> bool:
        """Whether it is the same in another program: the kind of the step, and both statuses."""
        return self._sign() == other._sign()

    def reason(self, known: Sequence[dict[str, Any]]) -> str | None:
        """Why it is known; None: it is not."""
        for row in known:
            statuses = (row.get("ours", self.ours.status), row.get("lakefs", self.lakefs.status))
            if row["step"] == self.step.name and statuses == (self.ours.status, self.lakefs.status):
                return str(row["reason"])
        return None

    def _sign(self) -> tuple[str, int, int]:
        return self.step.name, self.ours.status, self.lakefs.status


class Comparison:
    """Both servers, and the programs that ran on them."""

    def __init__(self, ours: Side, lakefs: Side) -> None:
        self._ours, self._lakefs = ours, lakefs
        self._known = tomllib.loads(_KNOWN.read_text()).get("known", []) if _KNOWN.exists() else []
        self._made = 0

    def run(self, program: Sequence[Step]) -> Difference | None:
        """Run a program up to its first difference that is not known, or one behind which states differ."""
        self._made += 1
        for side in (self._ours, self._lakefs):
            side.begin(f"random-{self._made}")
        for step in program:
            answers = self._ours.run(step), self._lakefs.run(step)
            if answers[0] == answers[1]:
                continue
            difference = Difference(step, *answers)
            if difference.reason(self._known) is None:
                return difference
            if step.method != "GET" and (answers[0].status < 400 or answers[1].status < 400):
                return None
        return None

    def shrink(self, program: list[Step], difference: Difference) -> tuple[list[Step], Difference]:
        """Take steps out of a program as long as it ends with the same difference."""
        program = program[: program.index(difference.step) + 1]
        tries, size = 0, max(1, len(program) // 2)
        while size and tries < _SHRINKS_MAX:
            at, is_shorter = 0, False
            while at < len(program) - 1 and tries < _SHRINKS_MAX:
                shorter = program[:at] + program[at + size :]
                tries += 1
                other = self.run(shorter)
                if other is not None and other.is_like(difference):
                    program, difference, is_shorter = shorter, other, True
                else:
                    at += size
            size = size if is_shorter and size == 1 else size // 2
        return program, difference


def compare(*, first_seed: int, program_count: int, step_count: int, folder: Path) -> list[str]:
    """The differences that are not known, each as the shortest program that was found."""
    lines: list[str] = []
    kinds: list[Difference] = []
    with lakebed_server(folder / "lakebed") as ours, lakefs_server(folder / "lakefs") as lakefs:
        comparison = Comparison(Side(ours), Side(lakefs))
        for seed in range(first_seed, first_seed + program_count):
            program = Writer(seed).program(step_count)
            difference = comparison.run(program)
            if difference is None or any(difference.is_like(other) for other in kinds):
                continue
            kinds.append(difference)
            program, difference = comparison.shrink(program, difference)
            lines += [f"Seed {seed}:", *(f"    {step}" for step in program)]
            lines += [f"  lakebed: {difference.ours}", f"  lakeFS:  {difference.lakefs}"]
    return lines


def main() -> int:
    """Run the programs and print what differs; the exit code is 1 when something does."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--programs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1, help="Of the first program.")
    parser.add_argument("--steps", type=int, default=40)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lines = compare(
            first_seed=arguments.seed,
            program_count=arguments.programs,
            step_count=arguments.steps,
            folder=Path(folder),
        )
    print("\n".join(lines) or f"{arguments.programs} programs end alike.")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
