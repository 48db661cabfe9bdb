"""What an edited pipeline takes over, what would run again, and that a run's id does not change by itself. No Spark."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lakebed.errors import InvalidRequest
from lakebed.pipeline import Pipeline, Plan
from lakebed.pipeline.carry import Carry, EarlierRun, check_patterns, plan_carry, refuse_reruns
from lakebed.pipeline.identity import identities
from lakebed.pipeline.inputs import Inputs
from lakebed.pipeline.model import StepIdentity, StepRecord

TEXT = """\
name: month
lake: lake
vars: {root: in}
tables:
  sales:
    primary_key: [id]
    options: {bucket: 1}
    schema: {id: BIGINT, amount: INT}
steps:
  - for_each: {day: [d1, d2, d3]}
    steps:
      - {step: ingest, name: "read ${day}", from: "${root}/${day}.csv", as: delivery, schema: {id: bigint, amount: int}}
      - {step: audit, name: "audit ${day}", from: delivery, overall: {some: count(*) > 0}}
      - {step: merge, name: "merge ${day}", into: sales, from: delivery}
      - {step: tag, name: "tag ${day}", table: sales, tag: "${day}"}
  - {step: expire, table: sales, keep: 3}
  - {step: report, to: report.html}
"""


def plan_of(text: str = TEXT, **variables: str) -> Plan:
    return Pipeline.parse(text, file="month.yaml").plan(variables=variables)


def done_by(plan: Plan, run_id: str = "old", *, first_snapshot: int = 1, is_old: bool = False) -> EarlierRun:
    """A run that finished every step of a plan; `is_old`: written before steps had identities."""
    records: dict[int, StepRecord] = {}
    snapshot = first_snapshot - 1
    for identity in identities(plan):
        step = identity.step
        metrics: dict[str, Any] = {}
        if identity.writes is not None:
            snapshot += 1
            metrics = {"table": identity.writes, "snapshot": snapshot, "rows": 5}
        elif step.kind == "tag":
            metrics = {"table": "sales", "tag": step.settings["tag"], "snapshot": snapshot}
        elif step.settings.get("as") is not None:
            metrics = {"view": step.settings["as"]}
        records[step.ordinal] = StepRecord(
            step.ordinal,
            step.name,
            step.kind,
            step.group,
            step.fingerprint,
            1000 * first_snapshot + step.ordinal,
            0.1,
            metrics,
            identity="" if is_old else identity.source,
        )
    return EarlierRun(run_id, dict(plan.variables), records)


def decide(
    plan: Plan,
    *earlier: EarlierRun,
    done: Mapping[int, StepRecord] | None = None,
    content: Callable[[StepIdentity], str | None] = lambda identity: None,
    replay: tuple[str, ...] = (),
    carry: tuple[str, ...] = (),
) -> Carry:
    return plan_carry(
        plan,
        identities(plan),
        run_id="new",
        done=done or {},
        earlier=earlier,
        content=content,
        replay=replay,
        carry=carry,
    )


def left(plan: Plan, decided: Carry) -> list[str]:
    """Names of the steps that will run."""
    carried = {record.ordinal for record in decided.records}
    return [step.name for step in plan.steps if step.ordinal not in carried]


def again(decided: Carry) -> list[str]:
    return [step.identity.step.name for step in decided.reruns]


@pytest.mark.parametrize("is_old", [False, True])
def test_an_edit_that_changes_no_row_runs_only_what_was_edited(is_old: bool) -> None:
    """`keep: 3` to `keep: 5`: the expiry and the report after it; also over a ledger of an older version."""
    before, after = plan_of(), plan_of(TEXT.replace("keep: 3", "keep: 5"))
    assert before.default_run_id != after.default_run_id
    decided = decide(after, done_by(before, is_old=is_old))
    assert left(after, decided) == ["expire", "report"]
    assert again(decided) == []
    assert {record.carried_from for record in decided.records} == {f"old/{number}" for number in range(1, 13)}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('name: "merge ${day}"', 'name: "put ${day}"'),
        ("as: delivery,", "as: delivery, cache: true,"),
        ("as: delivery", "as: incoming"),
        ("{root: in}", "{root: in, unused: 1}"),
        ("schema: {id: BIGINT, amount: INT}", "comment: sold\n    schema: {id: BIGINT, amount: INT}"),
        ("  - {step: expire", "\n\n  - {step: expire"),
    ],
)
def test_names_and_places_are_no_part_of_what_a_step_does(old: str, new: str) -> None:
    """Renamed steps and views, comments, lines and `cache` leave nothing to do."""
    assert old in TEXT
    text = TEXT.replace(old, new)
    if new == "as: incoming":
        text = text.replace("from: delivery", "from: incoming")
    after = plan_of(text)
    assert left(after, decide(after, done_by(plan_of()))) == []


def test_a_day_more_is_new_and_is_not_asked_for() -> None:
    """Steps that no run ever did run; everything before stays done, and what comes after them runs after them."""
    after = plan_of(TEXT.replace("[d1, d2, d3]", "[d1, d2, d3, d4]"))
    decided = decide(after, done_by(plan_of()))
    assert left(after, decided) == ["read d4", "audit d4", "merge d4", "tag d4", "expire", "report"]
    assert again(decided) == []


def test_a_day_less_changes_nothing() -> None:
    """A day that left the definition was merged before the others; they stay done."""
    after = plan_of(TEXT.replace("[d1, d2, d3]", "[d2, d3]"))
    decided = decide(after, done_by(plan_of()))
    assert left(after, decided) == []


def test_a_changed_merge_and_everything_after_it_is_asked_for() -> None:
    """Merged anew, day 2 would lie over day 3: so day 3 is on the list, with the reason."""
    after = plan_of(TEXT.replace('{step: merge, name: "merge ${day}", into: sales, from: delivery}', "{step: merge, "
        'name: "merge ${day}", into: sales, from: delivery, where: "\'${day}\' <> \'d2\' OR id > 0"}'))  # fmt: skip
    decided = decide(after, done_by(plan_of()))
    assert again(decided) == ["merge d1", "tag d1", "merge d2", "tag d2", "merge d3", "tag d3"]
    sentence = refuse_reruns(after, decided.reruns).message
    assert "'merge d1' (line 14: it was changed)" in sentence
    assert "--replay 'merge *'" in sentence
    assert "Nothing was done" in sentence


def test_a_day_in_the_middle_asks_for_the_days_after_it() -> None:
    """A new merge before others of the same table comes late; the list says so."""
    before = plan_of(TEXT.replace("[d1, d2, d3]", "[d1, d3]"))
    decided = decide(plan_of(), done_by(before))
    assert again(decided) == ["merge d3", "tag d3"]
    assert "'merge d2' runs before it and writes to 'sales'" in decided.reruns[0].reason
    kept = decide(plan_of(), done_by(before), carry=("* d3",))
    assert again(kept) == []
    assert left(plan_of(), kept) == ["read d2", "audit d2", "merge d2", "tag d2", "expire", "report"]


def test_replay_runs_a_step_again_and_lists_what_follows() -> None:
    """To replay day 2 alone is not possible without saying what happens to day 3."""
    plan = plan_of()
    decided = decide(plan, done_by(plan), replay=("merge d2",))
    assert again(decided) == ["tag d2", "merge d3", "tag d3"]
    decided = decide(plan, done_by(plan), replay=("merge d2", "merge d3", "tag d[23]"))
    assert again(decided) == []
    assert left(plan, decided) == ["merge d2", "tag d2", "merge d3", "tag d3", "expire", "report"]


def test_another_order_is_asked_for() -> None:
    """The same days merged in another order give another table."""
    after = plan_of(TEXT.replace("[d1, d2, d3]", "[d2, d1, d3]"))
    decided = decide(after, done_by(plan_of()))
    assert again(decided) == ["merge d1", "tag d1", "merge d3", "tag d3"]
    assert "was done after it" in decided.reruns[0].reason


def test_a_changed_input_is_asked_for() -> None:
    """The file of day 2 is another one than the one that was merged; an unknown input counts as unchanged."""
    before = done_by(plan_of())
    records = {
        ordinal: replace(record, metrics={**record.metrics, "content": f"c{record.name[-2:]}"})
        for ordinal, record in before.records.items()
        if record.verb in ("merge", "audit", "ingest")
    }
    run = replace(before, records={**before.records, **records})
    plan = plan_of(TEXT.replace("keep: 3", "keep: 5"))
    same = decide(plan, run, content=lambda identity: f"c{identity.step.name[-2:]}")
    assert left(plan, same) == ["expire", "report"]
    decided = decide(plan, run, content=lambda one: "other" if one.step.name.endswith("d2") else None)
    assert again(decided) == ["merge d2", "tag d2", "merge d3", "tag d3"]
    assert decided.reruns[0].reason == "its input has changed"


def test_other_variables_are_another_delivery() -> None:
    """A pipeline called once a day with the day as a variable: yesterday's steps are not today's."""
    text = TEXT.replace("vars: {root: in}", "vars: {root: in, day: }").replace(
        "  - for_each: {day: [d1, d2, d3]}\n    steps:\n", ""
    )
    text = text.replace("\n      - ", "\n  - ").replace(' "', ' "').replace('name: "merge ${day}", ', "")
    monday, tuesday = plan_of(text, day="mon"), plan_of(text, day="tue")
    decided = decide(tuesday, done_by(monday))
    assert again(decided) == []
    assert left(tuesday, decided) == ["read tue", "audit tue", "merge", "tag tue", "expire", "report"]
    edited = plan_of(text.replace("keep: 3", "keep: 9"), day="mon")
    decided = decide(edited, done_by(monday), done_by(tuesday, "tuesdays", first_snapshot=2))
    assert left(edited, decided) == ["expire", "report"]
    assert again(decided) == []


def test_a_run_that_was_killed_gives_what_it_finished() -> None:
    """Of a run that stopped in the middle the finished steps stay done; the rest is new."""
    whole = done_by(plan_of())
    cut = replace(whole, records={ordinal: record for ordinal, record in whole.records.items() if ordinal <= 7})
    plan = plan_of(TEXT.replace("keep: 3", "keep: 5"))
    decided = decide(plan, cut)
    assert len(decided.records) == 7
    assert again(decided) == []
    after_a_crash = decide(plan, cut, done={record.ordinal: record for record in decided.records[:3]})
    assert len(after_a_crash.records) == 4


def test_names_that_fit_no_step_are_refused() -> None:
    """A typing mistake in --replay would silently do nothing."""
    with pytest.raises(InvalidRequest, match=r"--replay 'merge d9' names no step.*'merge d"):
        check_patterns(plan_of(), replay=("merge d9",), carry=())
    with pytest.raises(InvalidRequest, match="both name the step 'merge d1'"):
        check_patterns(plan_of(), replay=("merge d1",), carry=("merge *",))


def test_the_fingerprint_of_a_definition_is_the_same_in_every_release() -> None:
    """A run id that changed with an upgrade would find nothing done."""
    assert plan_of().fingerprint == GOLDEN


GOLDEN = "999aadefe7ad086def29a9b5e45e8e41ed43256d833c1e214f83574ce42018a2"


def test_a_merge_declares_the_order_of_its_table() -> None:
    """`sequence` of a merge becomes the table's option; both ways to say it give one plan of the table."""
    text = TEXT.replace("into: sales, from: delivery}", "into: sales, from: delivery, sequence: amount}")
    assert plan_of(text).tables["sales"].options == {"bucket": "1", "sequence.field": "amount"}
    both = text.replace("options: {bucket: 1}", "options: {bucket: 1, sequence.field: amount}")
    assert plan_of(both).tables == plan_of(text).tables
    with pytest.raises(InvalidRequest, match=re.escape("declared with sequence.field: id; say the same")):
        plan_of(text.replace("options: {bucket: 1}", "options: {bucket: 1, sequence.field: id}"))
    with pytest.raises(InvalidRequest, match=r"line 14: .*no column 'amont'.* Did you mean 'amount'"):
        plan_of(text.replace("sequence: amount", "sequence: amont"))


def test_an_increment_is_known_by_its_bytes(tmp_path: Path) -> None:
    """Under another name the same bytes are the same increment; other bytes or another selection are not."""
    for name, body in {"d1": "id,amount\n1,2\n", "d2": "id,amount\n1,3\n", "d3": "id,amount\n1,2\n"}.items():
        (tmp_path / f"{name}.csv").write_text(body)
    steps = {identity.step.name: identity for identity in identities(plan_of(root=str(tmp_path)))}
    inputs = Inputs()
    content = {day: inputs.of(steps[f"merge {day}"]) for day in ("d1", "d2", "d3")}
    assert content["d1"] == content["d3"] != content["d2"]
    assert None not in content.values()
    (tmp_path / "d2.csv").write_text("id,amount\n1,2\n")
    assert inputs.of(steps["merge d2"]) == content["d1"]
    other = {
        identity.step.name: identity
        for identity in identities(
            plan_of(
                TEXT.replace("into: sales, from: delivery}", "into: sales, from: delivery, where: id > 1}"),
                root=str(tmp_path),
            )
        )
    }
    assert inputs.of(other["merge d1"]) not in content.values()
    (tmp_path / "d1.csv").unlink()
    assert inputs.of(steps["merge d1"]) is None
    folder = {
        identity.step.name: identity
        for identity in identities(
            plan_of(TEXT.replace('"${root}/${day}.csv"', '"${root}", format: csv'), root=str(tmp_path))
        )
    }
    (tmp_path / "_hidden.csv").write_text("x")
    before = Inputs().of(folder["merge d1"])
    (tmp_path / "_hidden.csv").write_text("y")
    assert Inputs().of(folder["merge d1"]) == before
    (tmp_path / "d4.csv").write_text("id,amount\n")
    assert Inputs().of(folder["merge d1"]) != before


def went_on(plan: Plan, decided: Carry, run_id: str = "second", *, first_snapshot: int = 10) -> EarlierRun:
    """A run that took over what was decided and did the rest."""
    assert again(decided) == []
    did = done_by(plan, run_id, first_snapshot=first_snapshot)
    return replace(did, records={**did.records, **{record.ordinal: record for record in decided.records}})


ONE_DAY_MORE = ("[d1, d2, d3]", "[d1, d2, d3, d4]")
DAY_4 = ["read d4", "audit d4", "merge d4", "tag d4", "expire", "report"]


def test_a_tag_that_was_carried_stands_at_the_next_edits() -> None:
    """The merges ran again, the tags were kept by consent; no consent is asked for again."""
    first, plan = done_by(plan_of()), plan_of()
    second = went_on(plan, decide(plan, first, replay=("merge *",), carry=("tag *",)))
    text = TEXT.replace("keep: 3", "keep: 5")
    third = went_on(plan_of(text), decide(plan_of(text), first, second), "third", first_snapshot=20)
    after = plan_of(text.replace(*ONE_DAY_MORE))
    decided = decide(after, first, second, third)
    assert again(decided) == []
    assert left(after, decided) == DAY_4
    carried = {record.name: record.carried_from for record in decided.records}
    assert (carried["tag d1"], carried["merge d1"]) == ("old/4", "second/3")


def test_a_merge_that_was_carried_stands_at_the_next_edit() -> None:
    """Day 2 came late and day 3 was kept: the next edit does not ask for day 3."""
    first = done_by(plan_of(TEXT.replace("[d1, d2, d3]", "[d1, d3]")))
    second = went_on(plan_of(), decide(plan_of(), first, carry=("* d3",)))
    after = plan_of(TEXT.replace(*ONE_DAY_MORE))
    assert left(after, decide(after, first, second)) == DAY_4
    other = plan_of(TEXT.replace("[d1, d2, d3]", "[d3, d1, d2]"))
    assert again(decide(other, first, second))[:2] == ["merge d1", "tag d1"]  # an order that no run accepted


def test_a_changed_step_that_was_carried_stands_at_the_next_edit() -> None:
    """The consent is to the changed step, and not to a step that is changed once more."""
    changed = TEXT.replace("into: sales, from: delivery}", "into: sales, from: delivery, where: id > 0}")
    first, plan = done_by(plan_of()), plan_of(changed)
    second = went_on(plan, decide(plan, first, carry=("merge *", "tag *")))
    after = plan_of(changed.replace(*ONE_DAY_MORE))
    assert left(after, decide(after, first, second)) == DAY_4
    again_changed = plan_of(changed.replace("id > 0", "id > 1"))
    assert "merge d1" in again(decide(again_changed, first, second))


def test_a_changed_input_that_was_carried_stands_until_it_changes_once_more() -> None:
    """The content that a person accepted counts as merged; the next one does not."""
    whole = done_by(plan_of())
    records = {n: replace(record, metrics={**record.metrics, "content": "a"}) for n, record in whole.records.items()}
    first, plan = replace(whole, records=records), plan_of(TEXT.replace("keep: 3", "keep: 5"))
    assert again(decide(plan, first, content=lambda one: "b"))[0] == "merge d1"
    kept = decide(plan, first, content=lambda one: "b", carry=("merge *", "tag *"))
    second = went_on(plan, kept)
    after = plan_of(TEXT.replace("keep: 3", "keep: 7"))
    for content in ("a", "b"):
        decided = decide(after, first, second, content=lambda one, now=content: now)  # type: ignore[misc]
        assert again(decided) == []
    assert again(decide(after, first, second, content=lambda one: "c"))[0] == "merge d1"


def test_the_reasons_name_what_was_changed() -> None:
    """A merge of which only the ingest was edited; a tag whose merge ran again at the same place."""
    after = plan_of(TEXT.replace('from: "${root}/${day}.csv"', 'from: "${root}/new/${day}.csv"'))
    reasons = {step.identity.step.name: step.reason for step in decide(after, done_by(plan_of())).reruns}
    assert reasons["merge d1"] == "'read d1', which it reads, was changed"
    plan = plan_of()
    second = went_on(plan, decide(plan, done_by(plan), replay=("merge *",), carry=("tag *",)))
    bare = replace(second, records={n: record for n, record in second.records.items() if not record.carried_from})
    reasons = {step.identity.step.name: step.reason for step in decide(plan, done_by(plan), bare).reruns}
    assert reasons["tag d1"] == "'merge d1' was run again after it"


PUBLISHING = """\
name: nightly
lake: lake
branch: analytics/etl
tables:
  a: {primary_key: [id], schema: {id: BIGINT}}
  b: {primary_key: [id], schema: {id: BIGINT}}
steps:
  - {step: ingest, from: in.csv, as: rows, schema: {id: bigint}}
  - {step: merge, name: merge a, into: a, from: rows}
%s
"""
PUBLISH = "  - {step: publish}"
MERGE_B = "  - {step: merge, name: merge b, into: b, from: rows}"
TAG_A = "  - {step: tag, table: a, tag: first}"


@pytest.mark.parametrize("late", [MERGE_B, TAG_A])
def test_a_publish_moved_behind_a_finished_step_runs_again(late: str) -> None:
    """What was done after the merge into the other branch is not published by it."""
    before = plan_of(PUBLISHING % f"{PUBLISH}\n{late}")
    after = plan_of(PUBLISHING % f"{late}\n{PUBLISH}")
    assert left(after, decide(after, done_by(before))) == ["publish"]


def test_a_resumed_run_takes_no_record_over_twice() -> None:
    """Of two equal steps one was done by an earlier run; a call that goes on with the run does not find it again."""
    twice = "  - {step: expire, name: first, table: a, keep: 3}\n  - {step: expire, name: second, table: a, keep: 3}"
    before = plan_of(PUBLISHING % "  - {step: expire, table: a, keep: 3}")
    after = plan_of(PUBLISHING % twice)
    earlier = done_by(before)
    decided = decide(after, earlier)
    assert left(after, decided) == ["second"]
    done = {record.ordinal: record for record in decided.records}
    assert decide(after, earlier, done=done).records == ()


def test_a_resumed_run_that_replayed_a_step_asks_for_what_follows() -> None:
    """A run did day 2 anew and was killed: when it goes on, what was done before that day is not done any more."""
    plan, first = plan_of(), done_by(plan_of())
    names = {step.name: step.ordinal for step in plan.steps}
    anew = done_by(plan, "new", first_snapshot=10).records
    carried = {record.ordinal: record for record in decide(plan, first).records if record.ordinal < names["merge d2"]}
    done = carried | {names["merge d2"]: anew[names["merge d2"]]}
    decided = decide(plan, first, done=done)
    assert again(decided) == ["tag d2", "merge d3", "tag d3"]
    assert "'merge d2' was run again after it" in decided.reruns[0].reason


def test_a_resumed_run_keeps_what_was_accepted() -> None:
    """Consent that an earlier run got stands for a run that has taken over some of these steps and was killed."""
    first = done_by(plan_of(TEXT.replace("[d1, d2, d3]", "[d1, d3]")))
    second = went_on(plan_of(), decide(plan_of(), first, carry=("* d3",)))
    after = plan_of(TEXT.replace(*ONE_DAY_MORE))
    whole = decide(after, first, second)
    assert again(whole) == []
    for count in range(1, len(whole.records)):
        done = {record.ordinal: record for record in whole.records[:count]}
        resumed = decide(after, first, second, done=done)
        assert again(resumed) == []
        assert resumed.records == whole.records[count:]
