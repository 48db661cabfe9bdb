"""The fleet's transactions as a small state machine, and an exhaustive search of its states.

Owns: the steps of control plane, nodes, log, network and collector, and the invariants, judged after every step; each
rule of the design can be undone (`worlds.fleet.search_model.Rules`). One tenant, one timeline,
one pin. A layer is abstract: rows ``(low, high]``, from which states before `since` can no longer be read.

The network keeps every request to commit that was sent and may deliver it at any time, any number of times. A put of a
process that died may land at any later time, or never: once the settle time has passed it no longer does.

Does not know: the implementation. It is the design (docs/design/0042-fleet.md), searched; the simulation in
`tests/worlds/fleet` runs the code.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from worlds.fleet.search_model import (
    ACKNOWLEDGED,
    ASKED,
    COLLECTED,
    COMMITTED,
    DOWN,
    IDLE,
    NONE,
    OPEN,
    REJECT_PENDING,
    REJECTED,
    RUN,
    Bounds,
    Found,
    Layer,
    Layers,
    Process,
    Request,
    Rules,
    State,
    Transaction,
    View,
    is_readable,
)

Step = tuple[str, State]


class Fleet:
    """The steps and the invariants under given rules."""

    def __init__(self, rules: Rules, bounds: Bounds) -> None:
        self.rules = rules
        self.bounds = bounds

    def first(self) -> State:
        """Nothing committed, nothing attached."""
        began = Transaction(COMMITTED, -1, -1, 0, view=View(), lists=1)
        return State(0, View(), (began,), (), 0, (None,) * (self.bounds.nodes + 1), NONE, frozenset(), NONE)

    def steps(self, s: State) -> Iterator[Step]:
        """Every step that can be taken."""
        yield from self._log(s)
        yield from self._attachments(s)
        for index, process in enumerate(s.processes):
            if process is not None:
                yield from self._process(s, index, process)
        yield from self._network(s)
        yield from self._collector(s)
        if self.bounds.readers:
            yield from self._reader(s)

    # ---- log

    def _log(self, s: State) -> Iterator[Step]:
        if s.log_last < self.bounds.lsns:
            yield "append", s._replace(log_last=s.log_last + 1)
        through = {s.view.lsn}
        if not self.rules.prunes_to_committed:
            through |= {process.view.lsn for process in s.processes if process is not None}
        for lsn in through:
            if lsn > s.log_first:
                yield f"prune to {lsn}", s._replace(log_first=lsn)

    # ---- control plane

    def _begun(self, s: State, node: int, generation: int) -> State:
        return s._replace(txns=(*s.txns, Transaction(OPEN, s.last, node, generation)))

    @staticmethod
    def _doomed(s: State, *, but: int | None = None, only: int | None = None) -> State:
        return s._replace(
            txns=tuple(
                transaction._replace(state=REJECT_PENDING)
                if transaction.state == OPEN and index != but and only in (None, transaction.node)
                else transaction
                for index, transaction in enumerate(s.txns)
            )
        )

    def _attachments(self, s: State) -> Iterator[Step]:
        may_begin = len(s.txns) <= self.bounds.txns
        for node in range(self.bounds.nodes):
            if may_begin:
                generation = s.generation + 1
                grown = self._begun(self._doomed(s), node, generation)
                yield f"attach n{node}", grown._replace(attached=((node, generation),), generation=generation)
            if may_begin and self.bounds.relocations and len(s.attached) == 1 and s.attached[0][0] != node:
                generation = s.generation + 1
                left = s if self.rules.relocation_dooms_not else self._doomed(s)
                grown = self._begun(left, node, generation)
                both = (*s.attached, (node, generation))
                yield f"relocate to n{node}", grown._replace(attached=both, generation=generation)
        if len(s.attached) == 2:
            source, target = s.attached
            yield f"detach n{source[0]}", self._doomed(s, only=source[0])._replace(attached=(target,))
        for node, generation in s.attached:
            yield from self._take(s, node, generation)

    def _take(self, s: State, node: int, generation: int) -> Iterator[Step]:
        """A node takes an attachment over in memory, and acknowledges what it had before."""
        old = s.processes[node]
        if old is not None and (old.generation >= generation or old.mode == DOWN):
            return
        if old is not None and old.flying is not None and (self.rules.acks_after_puts or s.processes[-1] is not None):
            return
        owned = [
            index
            for index, transaction in enumerate(s.txns)
            if (transaction.node, transaction.generation) == (node, generation)
            and transaction.state in (OPEN, REJECT_PENDING)
        ]
        if not owned:
            return
        txn = owned[-1]
        if s.txns[txn].is_taken and self.rules.takes_once:
            return
        base = s.txns[s.txns[txn].base].view
        if base is None:
            return
        if old is not None:
            s = self._acknowledged(s, old.txn)
        if old is not None and old.flying is not None:
            s = self._with(s, len(s.processes) - 1, old._replace(mode=REJECTED))
        s = self._set(s, txn, s.txns[txn]._replace(is_taken=True))
        yield f"n{node} takes txn {txn}", self._with(s, node, Process(node, generation, txn, base, base.lsn))

    def _grant(self, s: State, request: Request) -> bool:
        txn, rules = s.txns[request.txn], self.rules
        return (
            (txn.state == OPEN or (not rules.state_is_checked and txn.state != COMMITTED))
            and (txn.base == s.last or not rules.base_is_checked)
            and ((request.node, request.generation) in s.attached or not rules.attachment_is_checked)
        )

    def _deliver(self, s: State, request: Request) -> State:
        txn = s.txns[request.txn]
        if not self._grant(s, request):
            pending = self._set(s, request.txn, txn._replace(state=REJECT_PENDING))
            return pending if txn.state == OPEN else s
        if self.rules.grant_dooms:
            s = self._doomed(s, but=request.txn)
        following = None
        if self.rules.begins_with_grant and len(s.txns) <= self.bounds.txns:
            following = len(s.txns)
            s = s._replace(txns=(*s.txns, Transaction(OPEN, request.txn, request.node, request.generation)))
        done = txn._replace(state=COMMITTED, view=request.view, dead=request.dead, next=following)
        messages = s.acknowledged if request.view.pin is None else request.view.pin
        return self._set(s, request.txn, done)._replace(last=request.txn, view=request.view, acknowledged=messages)

    @staticmethod
    def _set(s: State, index: int, txn: Transaction) -> State:
        return s._replace(txns=(*s.txns[:index], txn, *s.txns[index + 1 :]))

    def _acknowledged(self, s: State, index: int) -> State:
        txn = s.txns[index]
        if txn.state not in (OPEN, REJECT_PENDING):
            return s
        return self._set(s, index, txn._replace(state=ACKNOWLEDGED))

    # ---- nodes

    @staticmethod
    def _with(s: State, index: int, process: Process | None) -> State:
        return s._replace(processes=(*s.processes[:index], process, *s.processes[index + 1 :]))

    def _process(self, s: State, index: int, p: Process) -> Iterator[Step]:
        name = f"n{p.node}" if index == p.node else f"old n{p.node}"
        if p.mode == DOWN:
            yield from self._restart(s, index, p)
            return
        if s.crashes < self.bounds.crashes:
            gone = s._replace(crashes=s.crashes + 1, late=s.late | ({p.flying} if p.flying else NONE))
            yield f"{name} dies", self._with(gone, index, p._replace(mode=DOWN, was=p.mode, flying=None))
            yield f"{name} and its disk are lost", self._with(gone, index, None)
            if not self.rules.resumes_with_lock and index == p.node and s.processes[-1] is None:
                second = self._with(s._replace(crashes=s.crashes + 1), len(s.processes) - 1, p)
                yield f"n{p.node} starts twice", self._resumed(second, index, p._replace(flying=None))
        if p.flying is not None:
            yield from self._fly(s, index, p, name, p.flying)
        elif p.mode == RUN or (p.mode == ASKED and not self.rules.silent_while_asked):
            yield from self._write(s, index, p, name)
        if p.mode == RUN and p.flying is None:
            yield from self._pin(s, index, p, name)
            if p.view != s.txns[s.txns[p.txn].base].view:
                yield from self._ask(s, index, p, name)
        if p.mode == ASKED:
            yield from self._learn(s, index, p, name)
        if p.mode == IDLE and len(s.txns) <= self.bounds.txns:
            begun = self._begun(self._doomed(s), p.node, p.generation)
            begun = self._set(begun, len(s.txns), begun.txns[-1]._replace(is_taken=True))
            following = p._replace(txn=len(s.txns), view=s.view, base_lsn=s.view.lsn, dead=NONE, noted=NONE, mode=RUN)
            yield f"{name} begins", self._with(begun, index, following)
        if p.mode == REJECTED and (p.flying is None or not self.rules.acks_after_puts):
            late = s.late | ({p.flying} if p.flying else NONE)
            yield f"{name} acknowledges", self._with(self._acknowledged(s, p.txn), index, None)._replace(late=late)

    def _write(self, s: State, index: int, p: Process, name: str) -> Iterator[Step]:
        view, written = p.view, []
        if s.log_first <= view.lsn < s.log_last:
            written.append(("flush", Layer(p.txn, view.lsn, view.lsn + 1, 0, p.serial)))
        if view.layers and {layer[1:4] for layer in view.layers} != {(0, view.lsn, view.lsn)}:
            written.append(("compact", Layer(p.txn, 0, view.lsn, view.lsn, p.serial)))
        for what, layer in written:
            noted = p._replace(flying=layer, noted=p.noted | {layer}, serial=p.serial + 1)
            yield f"{name} {what}", self._with(s, index, noted)

    def _fly(self, s: State, index: int, p: Process, name: str, layer: Layer) -> Iterator[Step]:
        landed = s._replace(store=s.store | {layer})
        left = p._replace(flying=None)
        if p.mode == REJECTED:
            yield f"{name} put", self._with(landed, index, left)
            return
        view = p.view
        replaced = frozenset(item for item in view.layers if layer.low <= item.low and item.high <= layer.high)
        died = replaced - (view.pinned if self.rules.pins_keep_layers else NONE)
        cutoff = max(view.cutoff, layer.since)
        grown = view._replace(lsn=max(view.lsn, layer.high), cutoff=cutoff, layers=(view.layers - replaced) | {layer})
        at_once = NONE if self.rules.deadlists_own else frozenset(item for item in died if item.txn == p.txn)
        left = left._replace(view=grown, dead=p.dead | (died - at_once), noted=p.noted - {layer})
        landed = landed._replace(store=landed.store - at_once)
        yield f"{name} put", self._with(landed, index, left)
        if s.unclear < self.bounds.unclear_puts:
            # The put is sent again and succeeds; the first one may land later still.
            unclear = landed._replace(unclear=s.unclear + 1, late=s.late | {layer})
            yield f"{name} put twice", self._with(unclear, index, left)

    def _pin(self, s: State, index: int, p: Process, name: str) -> Iterator[Step]:
        if not self.bounds.pins or p.view.pin is not None:
            return
        lowest = max(1, p.view.cutoff if self.rules.pins_above_cutoff else 1)
        for lsn in range(lowest, p.base_lsn + 1):
            pinned = frozenset(layer for layer in p.view.layers if layer.low < lsn)
            messages = s if self.rules.pins_by_commit else s._replace(acknowledged=lsn)
            view = p.view._replace(pin=lsn, pinned=pinned)
            yield f"{name} pin at {lsn}", self._with(messages, index, p._replace(view=view))

    def _ask(self, s: State, index: int, p: Process, name: str) -> Iterator[Step]:
        dead = p.dead | (p.noted if self.rules.notes_paths else NONE)
        request = Request(p.txn, p.node, p.generation, p.view, dead)
        asked = s._replace(requests=s.requests | {request})
        yield f"{name} asks for txn {p.txn}", self._with(asked, index, p._replace(mode=ASKED, dead=dead, noted=NONE))
        if not self.rules.manifest_is_pinned and s.draft is None:
            yield f"{name} puts a manifest slowly", s._replace(draft=(p.txn, p.view))

    def _learn(self, s: State, index: int, p: Process, name: str) -> Iterator[Step]:
        txn = s.txns[p.txn]
        granted = txn.view is not None and (
            txn.view == p.view or (not self.rules.silent_while_asked and txn.view.layers <= p.view.layers)
        )
        if txn.state == COMMITTED and granted and txn.view is not None:
            kept = p._replace(dead=NONE, noted=NONE, base_lsn=txn.view.lsn)
            if not self.rules.begins_with_grant:
                yield f"{name} learns the grant", self._with(s, index, kept._replace(mode=IDLE))
            elif txn.next is None:
                yield f"{name} learns the grant", self._with(s, index, None)
            else:
                taken = self._set(s, txn.next, s.txns[txn.next]._replace(is_taken=True))
                yield f"{name} learns the grant", self._with(taken, index, kept._replace(txn=txn.next, mode=RUN))
        elif txn.state == COMMITTED:
            yield f"{name} learns of another manifest", self._with(s, index, None)
        elif txn.state == REJECT_PENDING:
            yield f"{name} learns the rejection", self._with(s, index, p._replace(mode=REJECTED))
        elif txn.state in (ACKNOWLEDGED, COLLECTED):
            yield f"{name} learns the end", self._with(s, index, None)
        elif not self.rules.one_manifest:
            yield f"{name} goes on without an answer", self._with(s, index, p._replace(mode=RUN))

    def _restart(self, s: State, index: int, p: Process) -> Iterator[Step]:
        yield f"n{p.node} resumes", self._resumed(s, index, p)
        dropped = self._with(s, index, None)
        if s.txns[p.txn].state == REJECT_PENDING:
            dropped = self._acknowledged(dropped, p.txn)
        yield f"n{p.node} starts without resuming", dropped

    def _resumed(self, s: State, index: int, p: Process) -> State:
        """One LIST of the transaction's prefix; unknown objects are deleted, noted ones are dead."""
        known = p.view.refs | p.dead
        was = p.was if p.mode == DOWN else p.mode
        mode = RUN if was == ASKED and not self.rules.repeats_request else was
        frozen = mode == ASKED
        store = s.store if frozen else frozenset(write for write in s.store if write.txn != p.txn or write in known)
        dead = p.dead | p.noted if self.rules.notes_paths and not frozen else p.dead
        fresh = p._replace(mode=mode, dead=dead, noted=NONE, serial=p.serial + 1)
        return self._with(s._replace(store=store), index, fresh)

    # ---- network

    def _network(self, s: State) -> Iterator[Step]:
        for request in s.requests:
            after = self._deliver(s, request)
            if after is not s:
                yield f"txn {request.txn} is asked for", after
        for layer in s.late:
            yield f"late put in txn {layer.txn}", s._replace(late=s.late - {layer}, store=s.store | {layer})
            yield f"lost put in txn {layer.txn}", s._replace(late=s.late - {layer})
        if s.draft is not None and s.draft[0] == s.last:
            yield "the older manifest lands", s._replace(view=s.draft[1], draft=None)

    # ---- collector

    def _under_way(self, s: State, txn: int) -> bool:
        return any(write.txn == txn for write in s.late) or any(
            process is not None and process.flying is not None and process.flying.txn == txn for process in s.processes
        )

    def _collector(self, s: State) -> Iterator[Step]:
        for index, txn in enumerate(s.txns):
            if txn.state == COMMITTED and txn.lists == 0:
                settled = not self.rules.settles_committed or not any(item in s.late for item in txn.dead)
                pin = s.reader is not None and s.reader[0] < index and self.rules.honours_holds
                if settled and not pin:
                    done = self._set(s, index, txn._replace(lists=1))
                    yield f"collect the dead of {index}", done._replace(store=s.store - txn.dead)
            if txn.state == ACKNOWLEDGED:
                rest = frozenset(write for write in s.store if write.txn != index)
                if txn.lists == 0:
                    listed = txn._replace(lists=1, state=ACKNOWLEDGED if self.rules.lists_twice else COLLECTED)
                    yield f"list {index}", self._set(s, index, listed)._replace(store=rest)
                elif not self._under_way(s, index):
                    ended = txn._replace(state=COLLECTED)
                    yield f"list {index} again", self._set(s, index, ended)._replace(store=rest)
            if txn.state == REJECT_PENDING:
                yield f"force {index}", self._forced(s, index, txn)

    def _forced(self, s: State, index: int, txn: Transaction) -> State:
        """A person acknowledges for a node that cannot write any more: its credentials are revoked."""
        forced = self._acknowledged(s, index)
        if not self.rules.forces_dead_only:
            return forced
        owned = {number for number, transaction in enumerate(s.txns) if transaction.node == txn.node}
        left = tuple(process if process is None or process.node != txn.node else None for process in s.processes)
        return forced._replace(late=frozenset(write for write in s.late if write.txn not in owned), processes=left)

    def _reader(self, s: State) -> Iterator[Step]:
        if s.reader is None:
            yield "a reader attaches", s._replace(reader=(s.last, s.view))
        else:
            yield "the reader leaves", s._replace(reader=None)

    # ---- invariants

    def broken(self, before: State, s: State, step: str) -> str | None:
        """The invariant that a step broke."""
        return self._broken_by_step(before, s, step) or self._broken_state(s)

    def _broken_by_step(self, before: State, s: State, step: str) -> str | None:
        if s.last != before.last:
            if s.txns[s.last].base != before.last:
                return f"I1: {s.last} is committed with base {s.txns[s.last].base} instead of {before.last}"
            if s.last < before.last or s.view.lsn < before.view.lsn:
                return "I9: the committed transaction or its LSN went back"
        elif s.view != before.view:
            return "I7: the committed manifest changed"
        if not step.startswith(("attach", "detach")) and s.last == before.last:
            for old, new in zip(before.txns, s.txns, strict=False):
                may = (old.node, old.generation) in before.attached and old.base == before.last
                if may and old.state == OPEN and new.state == REJECT_PENDING:
                    return f"L1: {step!r} rejects the transaction of an attachment that may commit"
        return None

    def _broken_state(self, s: State) -> str | None:
        refs = s.view.refs
        if not refs <= s.store:
            return f"I2: the committed manifest names {sorted(refs - s.store)}, which is missing"
        if s.log_first > s.view.lsn:
            return f"I5: the log begins behind {s.log_first}, {s.view.lsn} is committed"
        if not all(is_readable(s.view.layers, lsn) for lsn in range(s.view.cutoff, s.view.lsn + 1)):
            return f"I5: an LSN of {s.view.cutoff}..{s.view.lsn} cannot be read"
        messages = s.acknowledged
        if messages is not None and (s.view.pin != messages or not is_readable(s.view.pinned, messages)):
            return f"I6: the acknowledged pin at {messages} is not in the committed manifest, or not readable"
        if s.reader is not None and not s.reader[1].refs <= s.store:
            return "I10: a reader with a hold misses an object"
        return self._broken_transaction(s, refs)

    def _broken_transaction(self, s: State, refs: Layers) -> str | None:
        to_collect: set[Layer] = set()
        for index, txn in enumerate(s.txns):
            if txn.state == COMMITTED:
                if txn.dead & refs:
                    return f"I4: {sorted(txn.dead & refs)} are on the deadlist of {index} and referenced"
                if txn.lists == 0:
                    to_collect |= txn.dead
            elif txn.state == ACKNOWLEDGED and any(
                item is not None and item.flying is not None and item.flying.txn == index for item in s.processes
            ):
                return f"I8: a node writes in transaction {index}, which is acknowledged"
            elif txn.state == COLLECTED and (any(write.txn == index for write in s.store | s.late)):
                return f"I8: transaction {index} is collected, and an object of it is there or on its way"
        for process in s.processes:
            if process is not None and process.mode in (RUN, ASKED):
                txn = s.txns[process.txn]
                may = (txn.node, txn.generation) in s.attached and txn.base == s.last and txn.state == OPEN
                if may and not process.view.refs <= s.store:
                    return f"I3: the open transaction {process.txn} misses {sorted(process.view.refs - s.store)}"
        leaked = [write for write in s.store if s.txns[write.txn].state == COMMITTED and write not in refs | to_collect]
        return f"I11: {sorted(leaked)} will never be deleted" if leaked else None


def search(rules: Rules | None = None, bounds: Bounds | None = None) -> Found:
    """Visit every state within the bounds, nearest first, up to the first violation."""
    rules, bounds = rules or Rules(), bounds or Bounds()
    fleet = Fleet(rules, bounds)
    first = fleet.first()
    came: dict[State, tuple[State, str] | None] = {first: None}
    queue = deque([first])
    while queue:
        state = queue.popleft()
        for step, after in fleet.steps(state):
            after = _forget(after, rules)
            if after in came:
                continue
            came[after] = (state, step)
            violation = fleet.broken(state, after, step)
            if violation is not None:
                return Found(len(came), False, violation, _path(came, after))
            if len(came) >= bounds.states_max:
                return Found(len(came), False)
            queue.append(after)
    return Found(len(came), True)


def _forget(s: State, rules: Rules) -> State:
    """The state without what has no effect any more."""
    if rules.state_is_checked and s.requests:
        open_ones = frozenset(request for request in s.requests if s.txns[request.txn].state == OPEN)
        if len(open_ones) != len(s.requests):
            s = s._replace(requests=open_ones)
    needed = {s.last, *(transaction.base for transaction in s.txns if transaction.state != COMMITTED)}
    needed |= {process.txn for process in s.processes if process is not None}
    if any(transaction.view is not None and index not in needed for index, transaction in enumerate(s.txns)):
        s = s._replace(
            txns=tuple(
                transaction if transaction.view is None or index in needed else transaction._replace(view=None)
                for index, transaction in enumerate(s.txns)
            )
        )
    return s


def _path(came: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    steps = []
    while (entry := came[state]) is not None:
        state, step = entry
        steps.append(step)
    return tuple(reversed(steps))
