"""Pipeline files: what is understood, and the one sentence with its line for everything that is not."""

from __future__ import annotations

import pytest

from lakebed.errors import InvalidRequest, NotFound
from lakebed.pipeline import Pipeline, check_file
from lakebed.pipeline.steps import KINDS

GOOD = """\
name: small
lake: ${root}/lake
vars:
  root: /data
  day:
tables:
  flights:
    primary_key: [id]
    schema: {id: BIGINT, delay: INT}
steps:
  - step: ingest
    from: ${root}/${day}.csv
    as: delivery
  - step: audit
    from: delivery
    every_row: {a delay that can be: delay < 1440}
  - step: merge
    into: flights
    from: delivery
  - step: expire
    table: flights
    keep: 3
    older_than: 7 days
"""


def test_a_good_file_becomes_a_typed_plan() -> None:
    """Variables are put in, values typed, defaults filled, ordinals counted from one."""
    plan = Pipeline.parse(GOOD).plan(variables={"day": "2013-01-01"})
    assert plan.lake == "/data/lake"
    assert [(step.ordinal, step.kind) for step in plan.steps] == [
        (1, "ingest"),
        (2, "audit"),
        (3, "merge"),
        (4, "expire"),
    ]
    assert plan.steps[0].settings["from"] == "/data/2013-01-01.csv"
    assert plan.steps[3].settings == {"table": "flights", "keep": 3, "keep_min": None, "older_than": 604_800_000}
    assert plan.tables["flights"].columns[0].type == "BIGINT"


def edited(old: str, new: str) -> str:
    """The good file with one mistake."""
    assert GOOD.count(old) == 1, old
    return GOOD.replace(old, new)


MISTAKES = [
    ("step: merge", "step: marge", 17, ["no step 'marge'", "Did you mean 'merge'?"]),
    ("    into: flights", "    intoo: flights", 18, ["step 'merge' has no key 'intoo'", "Did you mean 'into'?"]),
    ("    into: flights\n", "", 17, ["step 'merge' needs the key 'into'"]),
    ("keep: 3", "keep: three", 22, ["'keep' of step 'expire' must be a whole number", "'three'"]),
    ("keep: 3", "keep: [3]", 22, ["'keep' of step 'expire' must be one value"]),
    ("older_than: 7 days", "older_than: a week", 23, ["'older_than' of step 'expire'", "'a week' is not a duration"]),
    ("    keep: 3\n    older_than: 7 days\n", "", 20, ["say what to keep"]),
    ("every_row: {a delay that can be: delay < 1440}", "every_row: delay < 1440", 16, ["must be a mapping"]),
    ("    every_row: {a delay that can be: delay < 1440}\n", "", 14, ["nothing is expected"]),
    ("${root}/${day}.csv", "${root}/${dya}.csv", 12, ["no variable 'dya'", "Did you mean 'day'?"]),
    ("${root}/${day}.csv", "${root}/${day.week}.csv", 12, ["the variable 'day'", "no part 'week'"]),
    ("    as: delivery\n", "", 11, ["say where the rows go", "'into'", "'as'"]),
    ("as: delivery", "as: a-b", 13, ["must be a word", "'a-b'"]),
    ("tables:", "tabels:", 6, ["a pipeline has no key 'tabels'", "Did you mean 'tables'?"]),
    ("primary_key: [id]", "primary_key: [idd]", 8, ["no column 'idd'", "Did you mean 'id'?"]),
    ("delay: INT}", "delay: INTT}", 9, ["column 'delay' of table 'flights'"]),
    ("    primary_key: [id]", "    primary_keys: [id]", 8, ["no key 'primary_keys'", "Did you mean 'primary_key'?"]),
    ("name: small", "name: Small One", 1, ["the pipeline's name", "'Small One'"]),
    ("name: small\n", "", 1, ["needs the key `name`"]),
    ("  - step: audit", "  - stepp: audit", 14, ["a step needs the key `step`"]),
    ("    from: delivery\n    every_row", "    from: delivery\n    query: SELECT 1\n    every_row", 14, ["not both"]),
    ("  day:\n", "  day:\n  day: 1\n", 6, ["the key 'day' was already given in line 5"]),
    ("  root: /data", "  root: [1]", 4, ["the variable 'root' must be one value"]),
    ("steps:", "steps: {", 11, ["this is not YAML"]),
]


@pytest.mark.parametrize(
    ("old", "new", "line", "words"), MISTAKES, ids=[new[:40] or old[:40] for old, new, _, _ in MISTAKES]
)
def test_a_mistake_is_one_sentence_with_its_line(old: str, new: str, line: int, words: list[str]) -> None:
    """What is wrong, where, and the nearest right word."""
    with pytest.raises(InvalidRequest) as caught:
        Pipeline.parse(edited(old, new), file="small.yaml").plan(variables={"day": "2013-01-01"})
    assert caught.value.message.startswith(f"small.yaml, line {line}: "), caught.value.message
    assert caught.value.facts["line"] == line
    for word in words:
        assert word in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("name", ["12345", "a/b", "snapshot.1"])
def test_a_tag_that_cannot_be_is_found_before_anything_runs(name: str) -> None:
    """With the step's line, like every mistake of the file; the merge before it has committed nothing then."""
    text = GOOD + f"  - step: tag\n    table: flights\n    tag: {name}\n"
    with pytest.raises(InvalidRequest, match=r"line \d+: step 'tag': The tag name"):
        Pipeline.parse(text, file="good.yaml").plan(variables={"day": "2013-01-01"})


def test_a_variable_without_value_must_be_given() -> None:
    """The sentence says how."""
    with pytest.raises(InvalidRequest, match=r"line 5: the variable 'day' has no value.*--var day="):
        Pipeline.parse(GOOD).plan()


def test_a_variable_that_the_file_does_not_know_is_refused() -> None:
    """With the nearest one it knows."""
    with pytest.raises(InvalidRequest, match=r"no variable 'dai'. Did you mean 'day'\?"):
        Pipeline.parse(GOOD).plan(variables={"dai": "1"})


def test_a_missing_file_and_an_empty_one(tmp_path) -> None:
    """One sentence each."""
    with pytest.raises(NotFound, match="no pipeline file"):
        check_file(tmp_path / "none.yaml")
    empty = tmp_path / "empty.yaml"
    empty.write_text("")
    with pytest.raises(InvalidRequest, match="line 1: the file is empty"):
        check_file(empty)


def test_here_is_the_folder_of_the_file(tmp_path) -> None:
    """So that a pipeline can name files in its own folder."""
    file = tmp_path / "one.yaml"
    file.write_text("name: one\nlake: ${here}/lake\ntables: {t: }\nsteps:\n  - {step: expire, table: t, keep: 1}\n")
    assert check_file(file).plan.lake == f"{tmp_path.resolve()}/lake"


def loops(body: str) -> str:
    """A pipeline with one loop."""
    return f"name: loops\nlake: lake\nsteps:\n{body}"


def test_a_year_of_days_is_four_lines() -> None:
    """Months hold days; each step has a name of its own and knows its outermost loop."""
    plan = Pipeline.parse(
        loops(
            "  - for_each: {month: {in: 2012}}\n"
            "    steps:\n"
            "      - for_each: {day: {in: '${month}'}}\n"
            "        steps: [{step: tag, name: 'tag ${day}', table: t, tag: 'd-${day.day}-${day.month}'}]\n"
            "      - {step: compact, table: t}\n"
        )
    ).plan()
    assert len(plan.steps) == 366 + 12
    assert plan.steps[60].name == "tag 2012-02-29"
    assert plan.steps[60].settings["tag"] == "d-29-2"
    assert plan.steps[60].group == "month 2012-02"
    assert plan.steps[-1].name == "compact 2012-12"


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ("{from: 1, to: 3}", ["1", "2", "3"]),
        ("{from: 2013-11, to: 2014-01}", ["2013-11", "2013-12", "2014-01"]),
        ("{from: 2013-02-27, to: 2013-03-01}", ["2013-02-27", "2013-02-28", "2013-03-01"]),
        ("[a, b]", ["a", "b"]),
    ],
)
def test_ranges_include_both_ends(values: str, texts: list[str]) -> None:
    """Numbers, months, days and lists."""
    plan = Pipeline.parse(
        loops(f"  - for_each: {{x: {values}}}\n    steps: [{{step: tag, table: t, tag: 'v-${{x}}'}}]\n")
    ).plan()
    assert [step.settings["tag"] for step in plan.steps] == [f"v-{text}" for text in texts]


def test_several_variables_of_a_loop_are_combined() -> None:
    """The last one runs fastest."""
    plan = Pipeline.parse(
        loops("  - for_each: {a: [1, 2], b: [x, y]}\n    steps: [{step: tag, table: t, tag: 't${a}${b}'}]\n")
    ).plan()
    assert [step.settings["tag"] for step in plan.steps] == ["t1x", "t1y", "t2x", "t2y"]
    assert [step.name for step in plan.steps] == ["tag 1 x", "tag 1 y", "tag 2 x", "tag 2 y"]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ("{from: 3, to: 1}", "which is an empty range"),
        ("{from: 2013-01, to: 2013-01-05}", "two whole numbers, two months"),
        ("{from: 2013-02-30, to: 2013-03-01}", "two whole numbers, two months"),
        ("{from: 1}", "needs both 'from' and 'to'"),
        ("{form: 1, to: 2}", "Did you mean 'from'?"),
        ("{in: march}", "needs a month"),
        ("{from: 1, to: 999999999}", "at most 100,000"),
        ("5", "needs a list"),
    ],
)
def test_a_loop_that_makes_no_sense_is_refused(values: str, sentence: str) -> None:
    """With the line of its variable."""
    text = loops(f"  - for_each:\n      x: {values}\n    steps: [{{step: tag, table: t, tag: 'v-${{x}}'}}]\n")
    with pytest.raises(InvalidRequest, match="line 5") as caught:
        Pipeline.parse(text).plan()
    assert sentence in caught.value.message


def test_two_steps_cannot_have_one_name() -> None:
    """Because the ledger is read by people."""
    text = loops("  - {step: compact, name: tidy, table: t}\n  - {step: compact, name: tidy, table: u}\n")
    with pytest.raises(InvalidRequest, match="line 5: the name 'tidy' is already that of the step in line 4"):
        Pipeline.parse(text).plan()


def test_scalars_stay_text() -> None:
    """YAML's own dates, numbers and words for true do not change what was written."""
    plan = Pipeline.parse(loops("  - {step: audit, from: t, every_row: {on: x > 0x1, 2013-01-01: y = 010}}\n")).plan()
    assert plan.steps[0].settings["every_row"] == {"on": "x > 0x1", "2013-01-01": "y = 010"}


def test_two_dollar_signs_are_one() -> None:
    """So that a text can hold what looks like a variable."""
    plan = Pipeline.parse(loops("  - {step: report, to: 'a$${b}.html'}\n")).plan()
    assert plan.steps[0].settings["to"] == "a${b}.html"


def test_the_run_id_follows_from_the_plan() -> None:
    """The same definition and values are the same run; another value is another run."""
    pipeline = Pipeline.parse(GOOD)
    plan = pipeline.plan(variables={"day": "2013-01-01"})
    assert plan.default_run_id == pipeline.plan(variables={"day": "2013-01-01"}).default_run_id
    assert plan.default_run_id != pipeline.plan(variables={"day": "2013-01-02"}).default_run_id
    assert plan.default_run_id.startswith("small-")


def test_every_kind_of_step_says_what_it_is() -> None:
    """Kinds of steps and their keys are documented where they are defined."""
    assert set(KINDS) == {"ingest", "audit", "merge", "tag", "compact", "collect", "expire", "publish", "report"}
    for kind in KINDS.values():
        assert kind.summary
        assert all(key.help for key in kind.keys)


def test_a_key_that_came_later_is_no_part_of_a_step_at_its_default() -> None:
    """A run of an older release stays the same run; another value makes another step."""
    text = "name: a\nlake: l\nsteps:\n  - {step: ingest, from: in.csv, as: x, format: csv}\n"
    plan = Pipeline.parse(text).plan()
    assert plan.steps[0].fingerprint == "f5ca94ff5bc5f5f3541ab469b6a2b8bbd6d746d49a7323bc8376b96501ebbd6c"
    stop, drop = (text.replace("format: csv", f"format: csv, bad_rows: {what}") for what in ("stop", "drop"))
    assert Pipeline.parse(stop).plan().fingerprint == plan.fingerprint
    assert Pipeline.parse(drop).plan().fingerprint != plan.fingerprint
