"""YAML with line numbers: text -> a small tree in which every key and value has its location.

Owns: reading YAML, and errors that name a line. Invariants: scalars stay text (``2013-01-01`` is not a date here,
``on`` is not true), and the reader of a value decides its type. A key appears once in a mapping.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import yaml

from lakebed.errors import InvalidRequest

DEPTH_MAX = 50
"""Most levels of lists and mappings in a document."""
NODE_COUNT_MAX = 200_000
"""Most values in a document."""


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A file and a line."""

    file: str
    line: int
    """Counted from 1."""

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}"

    def error(self, sentence: str) -> InvalidRequest:
        """Return the error that names this location before `sentence`."""
        return InvalidRequest(f"{self}: {sentence}", file=self.file, line=self.line)


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value, as its text."""

    text: str
    location: SourceLocation
    is_null: bool = False
    """True for ``null``, ``~`` and nothing at all, unquoted."""


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    items: tuple[Node, ...]
    location: SourceLocation


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of a mapping with its value; `location` is the key's."""

    location: SourceLocation
    value: Node


@dataclass(frozen=True, slots=True)
class Mapping:
    """Keys with values, in the order written."""

    entries: dict[str, Entry]
    location: SourceLocation

    def get(self, key: str) -> Node | None:
        """Return the value of a key, or None."""
        entry = self.entries.get(key)
        return None if entry is None else entry.value


Node: TypeAlias = Scalar | Items | Mapping


def compose(text: str, *, file: str) -> Node:
    """Read one YAML document.

    Raises `InvalidRequest`: not YAML, empty, or a key twice in one mapping; `facts` has ``file`` and ``line``.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = 1 if mark is None else mark.line + 1
        raise SourceLocation(file, line).error(f"this is not YAML: {error.problem or error.context}.") from error
    except yaml.YAMLError as error:
        raise SourceLocation(file, 1).error(f"this is not YAML: {str(error).splitlines()[0]}.") from error
    except RecursionError as error:
        raise SourceLocation(file, 1).error(
            f"lists and mappings are nested too deep; at most {DEPTH_MAX} levels."
        ) from error
    if root is None:
        raise SourceLocation(file, 1).error("the file is empty; a pipeline needs `name`, `lake` and `steps`.")
    return _Converter(file).convert(root, depth=0)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``" Did you mean 'merge'?"`` if a known word is similar, otherwise a list of all. Begins with a space."""
    choices = sorted(known)
    close = difflib.get_close_matches(word, choices, n=1, cutoff=0.6)
    if close:
        return f" Did you mean '{close[0]}'?"
    return f" Known: {', '.join(choices)}." if choices else ""


class _Converter:
    """Converts the parser's nodes to nodes of this module. An alias is converted each time it is used."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._count = 0

    def convert(self, node: yaml.Node, *, depth: int) -> Node:
        """Convert one node with everything below it.

        Raises `InvalidRequest`: too deep, or too many nodes: an alias inside its own anchor, or aliases of aliases.
        """
        location = SourceLocation(self._file, node.start_mark.line + 1)
        self._count += 1
        if depth > DEPTH_MAX:
            raise location.error(f"lists and mappings are nested too deep; at most {DEPTH_MAX} levels.")
        if self._count > NODE_COUNT_MAX:
            raise location.error(
                f"the file has more than {NODE_COUNT_MAX:,} values, each alias counted with its content."
            )
        if isinstance(node, yaml.ScalarNode):
            return Scalar(node.value, location, is_null=node.tag == "tag:yaml.org,2002:null")
        if isinstance(node, yaml.SequenceNode):
            return Items(tuple(self.convert(item, depth=depth + 1) for item in node.value), location)
        entries: dict[str, Entry] = {}
        for key_node, value_node in node.value:
            key_location = SourceLocation(self._file, key_node.start_mark.line + 1)
            if not isinstance(key_node, yaml.ScalarNode):
                raise key_location.error("a key must be a word.")
            if key_node.value in entries:
                first = entries[key_node.value].location.line
                raise key_location.error(f"the key '{key_node.value}' was already given in line {first}.")
            entries[key_node.value] = Entry(key_location, self.convert(value_node, depth=depth + 1))
        return Mapping(entries, location)
