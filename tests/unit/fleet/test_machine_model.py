"""The transaction machine against a second one, written from the design over plain dictionaries, on random histories.

Each step is compared whole: the record after it, what finished, the collector's tasks and the reply.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from lakebed.errors import Conflict
from lakebed.fleet import machine
from lakebed.fleet.model import ManifestRef, NodeRecord, Policy, Progress, TenantRecord, Transaction
from lakebed.fleet.ports import AckRequest, CommitRequest, Resumed
from lakebed.fleet.records import HOLD_MS, Step

Record = dict[str, Any]

WAIT_MS = 50
NODES = ("a", "b", "c")
COMMITTERS = ("single", "multi")


class Refused(Exception):
    """The step is not made."""


class Model:
    """What a step makes of a record.

    Attributes:
        after: the record after it.
        finished, tasks: what left it, and what is to be collected.
    """

    def __init__(self, record: Record, now_ms: int) -> None:
        self.before = record
        self.after = copy.deepcopy(record)
        self.now_ms = now_ms
        self.finished: list[Record] = []
        self.tasks: list[Record] = []

    # ---- parts

    def refuse_deleted(self) -> None:
        if self.after["is_deleted"]:
            raise Refused

    def attachment(self, node: str | None) -> Record | None:
        return next((item for item in self.after["attachments"] if item["node"] == node), None)

    def open_of(self, attachment: Record) -> Record | None:
        for txn in self.after["transactions"]:
            if txn["state"] == "open" and [txn["node"], txn["generation"]] == [
                attachment["node"], attachment["generation"],
            ]:  # fmt: skip
                return txn  # type: ignore[no-any-return]
        return None

    def doom(self, *, of: str | None = None, but: int | None = None) -> None:
        for txn in self.after["transactions"]:
            if txn["state"] == "open" and txn["id"] != but and (of is None or txn["node"] == of):
                txn["state"] = "reject_pending"

    def add_attachment(self, node: str, mode: str) -> Record:
        item = {"node": node, "generation": self.after["next_generation"], "mode": mode}
        self.after["next_generation"] += 1
        self.after["attachments"].append(item)
        return item

    def begin(self, attachment: Record, local_id: str) -> int:
        id: int = self.after["next_txn"]
        self.after["next_txn"] += 1
        self.after["transactions"].append(
            {
                "id": id, "base": self.after["committed"], "node": attachment["node"],
                "generation": attachment["generation"], "state": "open", "begun_ms": self.now_ms, "local_id": local_id,
                "manifest": None, "has_deadlist": False, "ended_ms": None, "main": "", "main_lsn": 0,
            }
        )  # fmt: skip
        return id

    def drop_old_holds(self) -> None:
        self.after["holds"] = [hold for hold in self.after["holds"] if self.now_ms < hold["expires_ms"]]

    def hold(self, id: str, txn: int) -> None:
        self.after["holds"].append({"id": id, "txn": txn, "expires_ms": self.now_ms + HOLD_MS})

    def remove_attachment(self, node: str) -> None:
        after, running = self.after, self.after["relocation"]
        after["attachments"] = [item for item in after["attachments"] if item["node"] != node]
        if after["preferred"] == node:
            after["preferred"] = None
        if running is None or node not in (running["source"], running["target"]):
            return
        (other,) = {running["source"], running["target"]} - {node}
        after["relocation"], after["preferred"] = None, None
        for item in after["attachments"]:
            if item["node"] == other and item["mode"] in COMMITTERS:
                item["mode"], after["preferred"] = "single", other

    def acknowledge(self, gone: list[Record]) -> None:
        for txn in gone:
            self.after["transactions"] = [item for item in self.after["transactions"] if item["id"] != txn["id"]]
            self.finished.append({**txn, "state": "reject_acknowledged", "ended_ms": self.now_ms})
            self.tasks.append(self.task(txn["id"], "reject_acknowledged"))

    def task(self, txn: int, kind: str, **fields: Any) -> Record:
        nothing: Record = {"listed_ms": None, "deadlist": None, "unneeded": [], "timelines": []}
        return {"tenant": "t", "txn": txn, "kind": kind, "since_ms": self.now_ms, **nothing, **fields}

    def location(self, attachment: Record) -> Record:
        after = self.after
        txn = self.open_of(attachment) if attachment["mode"] in COMMITTERS else None
        return {
            "txn": None if txn is None else txn["id"], "generation": attachment["generation"],
            "mode": attachment["mode"], "base": after["committed"], "manifest": after["manifest"],
            "main": "main" if after["manifest"] is not None else after["names"].get("main", "main"),
        }  # fmt: skip

    def seal_lost(self, timelines: Record, names: Record) -> list[str]:
        before = self.before
        lost = []
        for id, progress in before["timelines"].items():
            keeps_name = all(names.get(name) == id for name, named in before["names"].items() if named == id)
            if not progress["is_read_only"] and id not in before["sealed"] and (id not in timelines or not keeps_name):
                lost.append(id)
        self.after["sealing"] += [id for id in lost if id not in before["sealing"]]
        return lost

    def has_moved(self) -> bool:
        running = self.after["relocation"]
        return running is not None and self.after["preferred"] == running["target"]

    def take_over(self, base: int) -> None:
        running = self.after["relocation"]
        self.after["preferred"] = running["target"]
        source = self.attachment(running["source"])
        if source is not None:
            source["mode"] = "stale"
        self.hold(f"relocation:{running['source']}", base)

    # ---- steps

    def attach(self, node: str) -> Record:
        self.refuse_deleted()
        self.doom()
        self.drop_old_holds()
        self.after["attachments"] = [
            item for item in self.after["attachments"] if item["mode"] == "reader" and item["node"] != node
        ]
        self.after["preferred"], self.after["relocation"] = node, None
        item = self.add_attachment(node, "single")
        self.begin(item, f"{node}-disk")
        return self.location(item)

    def attach_reader(self, node: str) -> Record:
        self.refuse_deleted()
        item = self.attachment(node)
        if item is not None and item["mode"] != "reader":
            raise Refused
        if item is None:
            self.drop_old_holds()
            item = self.add_attachment(node, "reader")
            self.hold(f"reader:{node}:{item['generation']}", self.after["committed"])
        return self.location(item)

    def detach(self, node: str) -> None:
        self.remove_attachment(node)
        self.doom(of=node)

    def decommission(self, node: str) -> None:
        self.remove_attachment(node)
        self.acknowledge([txn for txn in self.after["transactions"] if txn["node"] == node])

    def delete(self) -> None:
        if self.after["is_deleted"]:
            return
        self.seal_lost({}, {})
        self.doom()
        self.after |= {"is_deleted": True, "attachments": [], "preferred": None, "relocation": None, "home": None}

    def restart(self, node: str, resumed: tuple[int, int] | None) -> Record | None:
        item = self.attachment(node)
        txn = None if item is None else self.open_of(item)
        goes_on = txn is not None and resumed == (txn["generation"], txn["id"])
        if item is not None and item["mode"] == "stale":
            self.remove_attachment(node)
            item = None
        elif item is not None and item["mode"] in COMMITTERS and not goes_on:
            self.doom(of=node)
            item["generation"] = self.after["next_generation"]
            self.after["next_generation"] += 1
            self.begin(item, f"{node}-disk")
        self.acknowledge(
            [
                txn
                for txn in self.after["transactions"]
                if [txn["node"], txn["state"], txn["local_id"]] == [node, "reject_pending", f"{node}-disk"]
                and (resumed is None or txn["id"] != resumed[1])
            ]
        )
        return None if item is None else self.location(item)

    def relocate(self, node: str) -> Record:
        self.refuse_deleted()
        source, running = self.attachment(self.after["preferred"]), self.after["relocation"]
        if source is None or source["mode"] not in COMMITTERS:
            raise Refused
        if running is not None and running["target"] != node:
            raise Refused
        if running is not None or source["node"] == node:
            return self.location(self.attachment(node) or source)
        source["mode"] = "multi"
        self.after["attachments"] = [item for item in self.after["attachments"] if item["node"] != node]
        target = self.add_attachment(node, "multi")
        self.begin(target, f"{node}-disk")
        self.after["relocation"] = {
            "source": source["node"], "target": node, "begun_ms": self.now_ms,
            "source_waits_until_ms": self.now_ms + WAIT_MS,
        }  # fmt: skip
        return self.location(target)

    def hand_over(self) -> None:
        running = self.after["relocation"]
        if running is None or self.has_moved():
            return
        target = self.attachment(running["target"])
        if target is not None and self.open_of(target) is not None:
            self.doom(of=running["source"])
            self.take_over(self.after["committed"])

    def finish_relocation(self) -> None:
        if self.has_moved():
            self.remove_attachment(self.after["relocation"]["source"])

    def cancel_relocation(self) -> None:
        if self.after["relocation"] is not None and not self.has_moved():
            self.detach(self.after["relocation"]["target"])

    def commit(self, request: Record, finished: Record | None) -> Record:
        after = self.after
        txn = next((item for item in after["transactions"] if item["id"] == request["txn"]), None)
        asker = [request["node"], request["generation"]]
        if txn is None:
            if finished is None or [finished["node"], finished["generation"]] != asker:
                return {"verdict": "rejected"}
            if finished["state"] != "committed" or finished["manifest"] != request["manifest"]:
                return {"verdict": "rejected"}
            following = [
                item["id"]
                for item in after["transactions"]
                if [item["node"], item["generation"]] == asker and item["base"] == request["txn"]
            ]
            return {"verdict": "granted", "txn": following[0] if following else None, "generation": asker[1]}
        if [txn["node"], txn["generation"]] != asker or txn["state"] != "open":
            return {"verdict": "rejected"}
        item = self.attachment(request["node"])
        may_commit = item is not None and item["generation"] == asker[1] and item["mode"] in COMMITTERS
        goes_back = any(
            progress["lsn"] < after["timelines"][id]["lsn"]
            for id, progress in request["timelines"].items()
            if id in after["timelines"]
        )
        if txn["base"] != after["committed"] or not may_commit or goes_back:
            txn["state"] = "reject_pending"
            return {"verdict": "rejected"}
        running = after["relocation"]
        if running is not None and running["source"] == request["node"]:
            left_ms = running["source_waits_until_ms"] - self.now_ms
            if 0 < left_ms <= WAIT_MS:
                return {"verdict": "wait"}
        return self.grant(request, txn)

    def grant(self, request: Record, txn: Record) -> Record:
        after, before = self.after, self.before
        main = request["names"].get("main", "")
        self.finished.append(
            {
                **txn, "state": "committed", "ended_ms": self.now_ms, "manifest": request["manifest"],
                "has_deadlist": request["has_deadlist"], "main": main,
                "main_lsn": request["timelines"].get(main, {"lsn": 0})["lsn"],
            }
        )  # fmt: skip
        after["transactions"] = [item for item in after["transactions"] if item["id"] != txn["id"]]
        self.doom()
        path = request["manifest"]["path"]
        after |= {
            "committed": txn["id"], "manifest": request["manifest"], "timelines": request["timelines"],
            "names": request["names"],
            "deadlist": path.replace("manifest", "deadlist") if request["has_deadlist"] else None,
        }  # fmt: skip
        lost = self.seal_lost(request["timelines"], request["names"])
        after["sealed"] = [id for id in before["sealed"] + lost if id in request["timelines"]]
        self.drop_old_holds()
        readers = [item for item in after["attachments"] if item["mode"] == "reader"]
        ids = [f"reader:{reader['node']}:{reader['generation']}" for reader in readers]
        after["holds"] = [hold for hold in after["holds"] if hold["id"] not in ids]
        for id in ids:
            self.hold(id, txn["base"])
        following = self.begin(txn, txn["local_id"]) if request["begin"] else None
        running = before["relocation"]
        moved = running is not None and before["preferred"] == running["target"]
        if running is not None and txn["node"] == running["target"] and not moved:
            self.take_over(txn["base"])
        elif running is not None and txn["node"] == running["source"]:
            after["attachments"] = [item for item in after["attachments"] if item["node"] != running["target"]]
            after["relocation"]["source_waits_until_ms"] = self.now_ms + WAIT_MS
            known = [item["local_id"] for item in before["transactions"] if item["node"] == running["target"]]
            self.begin(self.add_attachment(running["target"], "multi"), known[-1] if known else "")
        unneeded = [path for path in ((before["manifest"] or {}).get("path"), before["deadlist"]) if path is not None]
        gone = [
            id
            for id, progress in before["timelines"].items()
            if id not in request["timelines"] and not progress["is_read_only"]
        ]
        if unneeded or gone or after["deadlist"] is not None:
            fields = {"deadlist": after["deadlist"], "unneeded": unneeded, "timelines": gone}
            self.tasks.append(self.task(txn["id"], "committed", **fields))
        return {"verdict": "granted", "txn": following, "generation": request["generation"]}

    def ack(self, id: int, node: str, generation: int, finished: Record | None, *, is_forced: bool) -> Record:
        found = [item for item in self.after["transactions"] if item["id"] == id]
        txn = found[0] if found else finished
        if txn is None or (not is_forced and [txn["node"], txn["generation"]] != [node, generation]):
            return {"is_accepted": False}
        if txn["state"] in ("reject_acknowledged", "garbage_collected"):
            return {"is_accepted": True}
        if txn["state"] == "committed" or (is_forced and txn["state"] == "open"):
            return {"is_accepted": False}
        item = self.attachment(node)
        if not is_forced and txn["state"] == "open" and item is not None and item["generation"] == generation:
            self.remove_attachment(node)
        self.acknowledge([txn])
        return {"is_accepted": True}


class History:
    """A tenant, the same for both, and what random events do to it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        policy = Policy(relocation_wait_max_ms=WAIT_MS)
        self.record: TenantRecord = machine.new_tenant("t", policy=policy, floor=None, now_ms=7)
        self.done: dict[int, Transaction] = {}
        self.now_ms = 1_000
        self.made: set[str] = set()

    def step(self) -> None:
        """One event; both do the same."""
        rng = self.rng
        self.now_ms += rng.choice([0, 0, 1, WAIT_MS // 2, WAIT_MS, HOLD_MS // 2, -WAIT_MS])
        name, make, expect = self.event()
        model = Model(full(self.record), self.now_ms)
        try:
            reply = expect(model)
        except Refused:
            with pytest.raises(Conflict):
                make()
            return
        step = make()
        assert full(step.record) == model.after, name
        assert [full(txn) for txn in step.finished] == model.finished, name
        assert [full(task) for task in step.tasks] == model.tasks, name
        got = None if step.reply is None else full(step.reply)
        assert (got is None) is (reply is None), name
        assert {key: (got or {})[key] for key in reply or {}} == (reply or {}), name
        if step.record != self.record:
            self.made.add(name)
        self.record = step.record
        self.done |= {txn.id: txn for txn in step.finished}

    def event(self) -> tuple[str, Callable[[], Step[Any]], Callable[[Model], Record | None]]:
        """What happens next."""
        rng, record, now_ms = self.rng, self.record, self.now_ms
        name = rng.choice(NODES)
        node = NodeRecord(name, f"http://{name}", "1", f"{name}-disk", 0)
        kind = rng.choice(
            ["attach", "attach_reader", "detach", "decommission", "restart", "relocate", "hand_over", "finish",
             "cancel", *["commit"] * 6, *["ack"] * 2, "force", "seal", *(["delete"] if rng.random() < 0.05 else [])]
        )  # fmt: skip
        if kind in ("attach", "attach_reader", "relocate"):
            act: Callable[..., Step[Any]] = getattr(machine, kind)
            return kind, lambda: act(record, node, now_ms=now_ms), lambda model: getattr(model, kind)(name)  # type: ignore[no-any-return]
        if kind in ("detach", "decommission"):
            act = getattr(machine, kind)
            return kind, lambda: act(record, name, now_ms=now_ms), lambda model: getattr(model, kind)(name)  # type: ignore[no-any-return]
        if kind == "delete":
            return kind, lambda: machine.delete(record, now_ms=now_ms), lambda model: model.delete()
        if kind == "hand_over":
            return kind, lambda: machine.hand_over(record, now_ms=now_ms), lambda model: model.hand_over()
        if kind == "finish":
            return kind, lambda: machine.finish_relocation(record), lambda model: model.finish_relocation()
        if kind == "cancel":
            return (
                kind,
                lambda: machine.cancel_relocation(record, now_ms=now_ms),
                lambda model: model.cancel_relocation(),
            )
        if kind == "restart":
            resumed = self.resumed()
            given = None if resumed is None else Resumed("t", *resumed)
            return (
                kind,
                lambda: machine.restart(record, node, given, now_ms=now_ms),
                lambda model: model.restart(name, resumed),
            )
        if kind == "seal":
            sealed = [id for id in record.sealing if rng.random() < 0.5]

            def expect_sealed(model: Model) -> None:
                model.after["sealing"] = [id for id in record.sealing if id not in sealed]

            return kind, lambda: machine.note_sealed(record, sealed), expect_sealed
        return self.transaction_event(kind)

    def resumed(self) -> tuple[int, int] | None:
        """What a process says that it continues."""
        txns = self.record.transactions
        if not txns or self.rng.random() < 0.3:
            return None
        txn = self.rng.choice(txns)
        return txn.generation + self.rng.choice([0, 0, 0, 1, -1]), txn.id + self.rng.choice([0, 0, 0, 1, -1])

    def transaction_event(self, kind: str) -> tuple[str, Callable[[], Step[Any]], Callable[[Model], Record | None]]:
        """A commit or an acknowledgement, mostly of what is open."""
        rng, record, now_ms = self.rng, self.record, self.now_ms
        known = [*record.transactions, *record.transactions, *list(self.done.values())[-3:]]
        given = rng.choice(known) if known else None
        id = 99 if given is None or rng.random() < 0.05 else given.id
        node = "a" if given is None else rng.choice([given.node] * 9 + ["b"])
        generation = (0 if given is None else given.generation) + rng.choice([0] * 9 + [1, -1])
        finished = self.done.get(id)
        kept = None if finished is None else full(finished)
        if kind == "commit":
            request = self.request(id, node, max(0, generation), given)
            return (
                kind,
                lambda: machine.commit(record, request, finished=finished, now_ms=now_ms),
                lambda model: model.commit(full(request), kept),
            )
        if kind == "ack":
            return (
                kind,
                lambda: machine.ack(record, AckRequest("t", id, node, generation), finished=finished, now_ms=now_ms),
                lambda model: model.ack(id, node, generation, kept, is_forced=False),
            )
        return (
            kind,
            lambda: machine.force_ack(record, id, finished=finished, now_ms=now_ms),
            lambda model: model.ack(id, node, generation, kept, is_forced=True),
        )

    def request(self, id: int, node: str, generation: int, given: Transaction | None) -> CommitRequest:
        """A request to commit, whose timelines go on from those that are committed, mostly."""
        rng = self.rng
        timelines = {
            name: Progress(max(0, progress.lsn + rng.choice([0, 1, 5, 5, -1])), 0, progress.is_read_only)
            for name, progress in self.record.timelines.items()
            if rng.random() < 0.9
        }
        if rng.random() < 0.3:
            timelines[f"x{rng.randint(0, 9)}"] = Progress(3, 0, rng.random() < 0.3)
        names = {
            name: timeline
            for name, timeline in self.record.names.items()
            if timeline in timelines and rng.random() < 0.9
        }
        if timelines and rng.random() < 0.4:
            names[rng.choice(["main", "n", "m"])] = rng.choice(list(timelines))
        manifest = ManifestRef(f"tenants/t/txn-{id}/manifest.{rng.choice([1, 1, 1, 2])}", "c", 9)
        if given is not None and given.manifest is not None and rng.random() < 0.6:
            manifest = given.manifest
        return CommitRequest(
            "t", id, node, generation, manifest, timelines, names,
            has_deadlist=rng.random() < 0.5, begin=rng.random() < 0.8,
        )  # fmt: skip


def full(value: Any) -> Any:
    """A record with all its fields, whether they have their defaults or not."""
    if isinstance(value, msgspec.Struct):
        return {name: full(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, (list, tuple)):
        return [full(item) for item in value]
    if isinstance(value, dict):
        return {key: full(item) for key, item in value.items()}
    return value.value if hasattr(value, "value") else value


@pytest.mark.parametrize("seed", range(12))
def test_each_step_is_that_of_the_model(seed: int) -> None:
    """Of histories of a few hundred events; a tenant that was deleted is followed by another."""
    made: set[str] = set()
    for part in range(6):
        history = History(100 * seed + part)
        for _ in range(120):
            history.step()
        made |= history.made
    assert {"attach", "attach_reader", "relocate", "commit", "ack", "restart", "decommission"} <= made
