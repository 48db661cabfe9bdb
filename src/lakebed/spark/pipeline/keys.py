"""What a step understands: its verb, its keys with their kinds, and what runs it.

Owns: `Key`, `StepKind`, and reading a mapping of YAML into typed settings. Invariants: settings hold every key of the
verb, defaults filled in; a wrong key, a missing one or a wrong type is one sentence with the line. Starts nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from lakebed.duration import parse_duration_ms
from lakebed.errors import InvalidRequest
from lakebed.spark.pipeline.nodes import Entry, Items, Node, Place, Scalar, nearest
from lakebed.spark.pipeline.nodes import Mapping as MappingNode
from lakebed.spark.pipeline.values import Value, substitute
from lakebed.texts import shown, whole_number

if TYPE_CHECKING:
    from lakebed.spark.pipeline.context import RunContext
    from lakebed.spark.pipeline.model import PlannedStep

__all__ = ["Key", "Kind", "StepKind", "read_key", "read_settings"]

Kind = Literal["text", "word", "sql", "table", "rows", "count", "flag", "duration", "texts", "names"]
"""text: any text. word: letters, digits and ``_``. sql: an expression or query. table: a table of the lake. rows: a
table of the lake or a view that an ingest step named. count: a whole number >= 0. flag: true or false. duration: such
as ``7 days`` (milliseconds when read). texts: words with texts. names: a list of column names."""

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
    """The verb got this key after its first release: at its default it is no part of a step's fingerprint, so that the
    runs of older releases stay the same runs."""


@dataclass(frozen=True, slots=True)
class StepKind:
    """One verb: what it understands and how it runs. Each verb's module in `steps` defines one, called ``KIND``."""

    verb: str
    summary: str
    keys: tuple[Key, ...]
    run: Callable[[PlannedStep, RunContext], dict[str, Any]]
    """Does the step and returns its metrics. Must be safe to call again after a crash at any point."""
    check: Callable[[Mapping[str, Any]], str | None] = lambda settings: None
    """A sentence when typed settings contradict each other, else None."""
    recall: Callable[[PlannedStep, RunContext], None] = lambda step, context: None
    """Called in place of `run` for a step that the ledger has: what later steps of this process still need of it."""


def read_settings(
    entries: Mapping[str, Entry], kind: StepKind, variables: Mapping[str, Value], place: Place
) -> dict[str, Any]:
    """The typed settings of one step.

    Args:
        entries: the step's own keys (without ``step`` and ``name``).
        place: the step, for errors about what is missing.

    Raises:
        InvalidRequest: unknown, missing or wrong; one sentence with file and line.
    """
    known = {key.name: key for key in kind.keys}
    for name, entry in entries.items():
        if name not in known:
            raise entry.place.error(f"step '{kind.verb}' has no key '{name}'.{nearest(name, known)}")
    settings: dict[str, Any] = {}
    for key in kind.keys:
        entry_or_none = entries.get(key.name)
        if entry_or_none is None or _is_null(entry_or_none.value):
            if key.required:
                raise place.error(f"step '{kind.verb}' needs the key '{key.name}': {key.help}.")
            settings[key.name] = key.default
        else:
            settings[key.name] = read_key(entry_or_none.value, key, variables, f"'{key.name}' of step '{kind.verb}'")
    contradiction = kind.check(settings)
    if contradiction is not None:
        raise place.error(f"step '{kind.verb}': {contradiction}")
    return settings


def read_key(node: Node, key: Key, variables: Mapping[str, Value], what: str) -> Any:
    """One value, substituted and typed; `what` names it in errors."""
    if key.kind == "texts":
        return _texts(node, variables, what)
    if key.kind == "names":
        return _names(node, variables, what)
    if not isinstance(node, Scalar):
        raise node.place.error(f"{what} must be one value, not a list or a mapping.")
    text = substitute(node.text, variables, node.place).strip()
    if not text:
        raise node.place.error(f"{what} is empty.")
    if key.choices and text not in key.choices:
        raise node.place.error(f"{what} cannot be '{text}'.{nearest(text, key.choices)}")
    if key.kind == "count":
        number = whole_number(text)
        if number is None:
            raise node.place.error(f"{what} must be a whole number from 0, not {shown(text)}.")
        return number
    if key.kind == "flag":
        if text.lower() not in _FLAGS:
            raise node.place.error(f"{what} must be true or false, not '{text}'.")
        return _FLAGS[text.lower()]
    if key.kind == "word" and not _WORD.fullmatch(text):
        raise node.place.error(f"{what} must be a word of letters, digits and '_', not '{text}'.")
    if key.kind == "duration":
        try:
            return parse_duration_ms(text)
        except InvalidRequest as error:
            raise node.place.error(f"{what}: {error.message}") from error
    return text


def _texts(node: Node, variables: Mapping[str, Value], what: str) -> dict[str, str]:
    if not isinstance(node, MappingNode):
        raise node.place.error(f"{what} must be a mapping (one 'name: text' a line).")
    texts: dict[str, str] = {}
    for name, entry in node.entries.items():
        if not isinstance(entry.value, Scalar):
            raise entry.place.error(f"'{name}' in {what} must be one value.")
        texts[substitute(name, variables, entry.place)] = substitute(entry.value.text, variables, entry.value.place)
    return texts


def _names(node: Node, variables: Mapping[str, Value], what: str) -> tuple[str, ...]:
    items: Sequence[Node] = node.items if isinstance(node, Items) else (node,)
    names: list[str] = []
    for item in items:
        if not isinstance(item, Scalar):
            raise item.place.error(f"{what} must be a list of names.")
        names.append(substitute(item.text, variables, item.place))
    return tuple(names)


def _is_null(node: Node) -> bool:
    return isinstance(node, Scalar) and node.is_null
