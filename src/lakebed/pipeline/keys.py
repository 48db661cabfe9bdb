"""The declaration of a step's kind: its verb, its keys with their types, the functions that run it.

Owns: `Key`, `StepKind`, and reading a YAML mapping into typed settings. Invariants: settings hold every key of the
verb, defaults filled in; an unknown key, a missing key or a wrong type is one sentence with the line. Starts nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from lakebed.duration import parse_duration_ms
from lakebed.errors import InvalidRequest
from lakebed.pipeline.nodes import Entry, Items, Node, Scalar, SourceLocation, nearest
from lakebed.pipeline.nodes import Mapping as MappingNode
from lakebed.pipeline.values import Value, substitute
from lakebed.texts import format_count, format_value, whole_number

if TYPE_CHECKING:
    from lakebed.pipeline.context import RunContext
    from lakebed.pipeline.model import PlannedStep

Kind = Literal[
    "text", "word", "expression", "query", "table", "rows", "count", "flag", "duration", "texts", "predicates", "names"
]
"""text: any text. word: letters, digits and ``_``. expression, query: SQL. table: a table of the lake. rows: a table of
the lake or a view that an ingest step named. count: a whole number >= 0. flag: true or false. duration: such as
``7 days`` (milliseconds when read). texts: words with texts. predicates: names with SQL predicates. names: a list of
column names."""

_FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a step."""

    name: str
    kind: Kind
    help: str
    required: bool = False
    default: Any = None
    choices: tuple[str, ...] = ()
    is_later: bool = False
    """Whether the key is newer than its kind of step. At its default it is not part of a step's fingerprint, so that
    runs of older releases keep their identity."""
    only_with: str = ""
    """The key of the pipeline without which this one has no meaning; empty: none."""


def _describe_rows(metrics: Mapping[str, Any]) -> list[str]:
    """Return how many rows a step counted, and which snapshot it committed, for the console."""
    words = [format_count(metrics["rows"], "row")] if "rows" in metrics else []
    if metrics.get("rows_dropped"):
        words.append(f"{format_count(metrics['rows_dropped'], 'bad row')} dropped")
    if metrics.get("snapshot") is not None:
        words.append(f"snapshot {metrics['snapshot']}")
    return words


@dataclass(frozen=True, slots=True)
class StepKind:
    """The declaration of one kind of step: its keys, how it runs, what it changes.

    Each module in `steps` defines one, called ``KIND``.
    """

    name: str
    """The value of ``step:`` in a definition, such as ``merge``."""
    summary: str
    keys: tuple[Key, ...]
    run: Callable[[PlannedStep, RunContext], dict[str, Any]]
    """Runs the step and returns its metrics. Must be safe to call again after a crash at any point."""
    check: Callable[[Mapping[str, Any]], str | None] = lambda settings: None
    """Returns a sentence if typed settings contradict each other, otherwise None."""
    recall: Callable[[PlannedStep, RunContext], None] = lambda step, context: None
    """Called instead of `run` for a step that is in the ledger. Restores what later steps of this process need."""
    describe: Callable[[Mapping[str, Any]], list[str]] = _describe_rows
    """Metrics -> what the step did, in a few words for the console."""
    writes: str | None = None
    """The key with the table whose rows the step changes. If its value is None, the step changes no table."""
    rewrites: str | None = None
    """The key with the table whose files the step rewrites without changing its rows."""
    creates_names: bool = False
    """Whether it creates or moves tags. Such a step, and one that changes rows, never runs again without consent."""
    reads_files: bool = False
    """Whether it reads the input files of its key ``from``."""
    depends_on_all: bool = False
    """Whether it depends on every step before it."""
    needs_branch: bool = False
    """Whether it works only in a pipeline with ``branch:`` or ``table_branch:``."""
    main_only: bool = False
    """Whether its effect on a table's versions must be in main, because a branch is deleted after it was published."""
    is_milestone: bool = False
    """Whether a progress bar leaves a line for it, even inside a loop."""

    def table_written(self, settings: Mapping[str, Any]) -> str | None:
        """Return the table whose rows a step of this kind changes; None: it changes none."""
        return None if self.writes is None else settings[self.writes]


def read_settings(
    entries: Mapping[str, Entry], kind: StepKind, variables: Mapping[str, Value], location: SourceLocation
) -> dict[str, Any]:
    """Return the typed settings of one step.

    Args:
        entries: the step's own keys (without ``step`` and ``name``).
        location: the step, for errors about what is missing.

    Raises `InvalidRequest`: unknown, missing or wrong; one sentence with file and line.
    """
    keys_by_name = {key.name: key for key in kind.keys}
    for name, entry in entries.items():
        if name not in keys_by_name:
            raise entry.location.error(f"step '{kind.name}' has no key '{name}'.{nearest(name, keys_by_name)}")
    settings: dict[str, Any] = {}
    for key in kind.keys:
        entry_or_none = entries.get(key.name)
        if entry_or_none is None or _is_null(entry_or_none.value):
            if key.required:
                raise location.error(f"step '{kind.name}' needs the key '{key.name}': {key.help}.")
            settings[key.name] = key.default
        else:
            settings[key.name] = read_key(entry_or_none.value, key, variables, f"'{key.name}' of step '{kind.name}'")
    contradiction = kind.check(settings)
    if contradiction is not None:
        raise location.error(f"step '{kind.name}': {contradiction}")
    return settings


def read_key(node: Node, key: Key, variables: Mapping[str, Value], what: str) -> Any:
    """Substitute variables in one value and convert it; `what` names it in errors."""
    if key.kind in ("texts", "predicates"):
        return _texts(node, variables, what)
    if key.kind == "names":
        return _names(node, variables, what)
    if not isinstance(node, Scalar):
        raise node.location.error(f"{what} must be one value, not a list or a mapping.")
    text = substitute(node.text, variables, node.location).strip()
    if not text:
        raise node.location.error(f"{what} is empty.")
    if key.choices and text not in key.choices:
        raise node.location.error(f"{what}='{text}' is invalid.{nearest(text, key.choices)}")
    if key.kind == "count":
        number = whole_number(text)
        if number is None:
            raise node.location.error(f"{what} must be a whole number from 0, not {format_value(text)}.")
        return number
    if key.kind == "flag":
        if text.lower() not in _FLAGS:
            raise node.location.error(f"{what} must be true or false, not '{text}'.")
        return _FLAGS[text.lower()]
    if key.kind == "word" and not _WORD.fullmatch(text):
        raise node.location.error(f"{what} must be a word of letters, digits and '_', not '{text}'.")
    if key.kind == "duration":
        try:
            return parse_duration_ms(text)
        except InvalidRequest as error:
            raise node.location.error(f"{what}: {error.message}") from error
    return text


def _texts(node: Node, variables: Mapping[str, Value], what: str) -> dict[str, str]:
    if not isinstance(node, MappingNode):
        raise node.location.error(f"{what} must be a mapping (one 'name: text' a line).")
    texts: dict[str, str] = {}
    for name, entry in node.entries.items():
        if not isinstance(entry.value, Scalar):
            raise entry.location.error(f"'{name}' in {what} must be one value.")
        texts[substitute(name, variables, entry.location)] = substitute(
            entry.value.text, variables, entry.value.location
        )
    return texts


def _names(node: Node, variables: Mapping[str, Value], what: str) -> tuple[str, ...]:
    items: Sequence[Node] = node.items if isinstance(node, Items) else (node,)
    names: list[str] = []
    for item in items:
        if not isinstance(item, Scalar):
            raise item.location.error(f"{what} must be a list of names.")
        names.append(substitute(item.text, variables, item.location))
    return tuple(names)


def _is_null(node: Node) -> bool:
    return isinstance(node, Scalar) and node.is_null
