"""State that every snapshot inherits from its predecessor, in its `properties`.

Owns: `InheritedState`, the keys below, and reading them from the newest snapshot that lakebed wrote.

    lakebed.format        "1": lakebed wrote this snapshot and copied the state
    lakebed.follows       id of the predecessor, where it is not this id - 1 (see `commit`)
    lakebed.restored      "true" once a rollback restored old files (their lifetimes then have holes)
    lakebed.user.<user>   "<identifier>@<snapshot id>": newest commit of each streaming user, so that a replay is
                          recognised after its snapshot expired. DO NOT CHANGE: on disk.

Invariants: at most `USERS_MAX` users are kept, those that committed last. The replay of an older user is recognised
only while its own snapshots live. Snapshots of other clients hold no state: the search goes back to the newest snapshot
that lakebed wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from lakebed.table.model.model import BATCH_COMMIT_IDENTIFIER, ROLLED_BACK_TO, Snapshot
from lakebed.texts import whole_number

USERS_MAX = 100
"""Most streaming users that are remembered. About 60 bytes each, in every snapshot file."""

FOLLOWS = "lakebed.follows"
_FORMAT = "lakebed.format"
_RESTORED = "lakebed.restored"
_USER = "lakebed.user."


@dataclass(frozen=True, slots=True)
class UserCommit:
    """The newest commit of one streaming user."""

    identifier: int
    snapshot_id: int


@dataclass(frozen=True, slots=True)
class InheritedState:
    """What a snapshot inherits from its predecessors."""

    restored: bool = False
    """Whether any rollback ever restored files: then a file may have been dead and live again."""
    users: Mapping[str, UserCommit] = field(default_factory=dict)

    def after(self, snapshot: Snapshot) -> InheritedState:
        """The state after one more commit."""
        if snapshot.commit_identifier == BATCH_COMMIT_IDENTIFIER:
            return self
        users = {**self.users, snapshot.commit_user: UserCommit(snapshot.commit_identifier, snapshot.id)}
        if len(users) > USERS_MAX:
            newest = sorted(users.items(), key=lambda item: item[1].snapshot_id, reverse=True)[:USERS_MAX]
            users = dict(newest)
        return replace(self, users=users)


def is_ours(snapshot: Snapshot) -> bool:
    """Whether lakebed wrote this snapshot, and so copied its predecessor's state into it."""
    return _FORMAT in snapshot.properties


def follows(snapshot: Snapshot) -> int:
    """The id of the snapshot that this one was committed on."""
    text = snapshot.properties.get(FOLLOWS, "")
    return int(text) if text.isdecimal() else snapshot.id - 1


def inheritance_of(snapshot: Snapshot) -> InheritedState:
    """The state stored in a snapshot (or tag) that lakebed wrote, without that snapshot's own commit."""
    users: dict[str, UserCommit] = {}
    for key, value in snapshot.properties.items():
        identifier, separator, snapshot_id = value.partition("@")
        if key.startswith(_USER) and separator and _is_integer(identifier) and _is_integer(snapshot_id):
            users[key[len(_USER) :]] = UserCommit(int(identifier), int(snapshot_id))
    return InheritedState(restored=snapshot.properties.get(_RESTORED) == "true", users=users)


def load_inherited(newest_first: Iterable[Snapshot]) -> InheritedState:
    """The state that the next commit must write: that of lakebed's newest snapshot, plus every commit since.

    Cost: nothing when lakebed wrote the newest snapshot; else 1 GET for each snapshot of other clients since.
    """
    since: list[Snapshot] = []
    inherited = InheritedState()
    for snapshot in newest_first:
        since.append(snapshot)
        if is_ours(snapshot):
            inherited = inheritance_of(snapshot)
            break
    for snapshot in reversed(since):
        inherited = inherited.after(snapshot)
    return inherited


def encode_inherited(inherited: InheritedState) -> dict[str, str]:
    """The properties that hold the state."""
    properties = {_FORMAT: "1"}
    if inherited.restored:
        properties[_RESTORED] = "true"
    for user, commit in inherited.users.items():
        properties[_USER + user] = f"{commit.identifier}@{commit.snapshot_id}"
    return properties


def _is_integer(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


def rollback_target(snapshot: Snapshot) -> int | None:
    """The id of the version that this snapshot restored by a rollback; None for other snapshots."""
    return whole_number(snapshot.properties.get(ROLLED_BACK_TO, ""))
