"""XML of S3: replies written, and the few bodies of requests read.

Owns: escaping, and the limits of what is read. Invariants: a body with a document type, so with any entity of its own,
is refused before anything of it is expanded; depth and size are bounded; a key with a character that XML cannot hold is
written as AWS does, as a reference to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias
from xml.parsers import expat
from xml.sax.saxutils import escape

NAMESPACE: Final = "http://s3.amazonaws.com/doc/2006-03-01/"
DECLARATION: Final = '<?xml version="1.0" encoding="UTF-8"?>\n'
XML_BYTES_MAX: Final = 4 << 20
"""Largest body: ten thousand parts with their checksums, or a thousand long keys."""

_DEPTH_MAX: Final = 8
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\ufffe\uffff]")

Value: TypeAlias = "str | int | bool | Iterable[tuple[str, Value]]"


def can_hold(text: str) -> bool:
    """Whether XML can hold a text as it is: clients read a reference to such a character as an error."""
    return _CONTROL.search(text) is None


def echo(name: str, text: str) -> list[tuple[str, str]]:
    """What a reply repeats of its request, as a child; none where clients could not read the reply because of it."""
    return [(name, text)] if can_hold(text) else []


def render(name: str, children: Iterable[tuple[str, Value]], *, namespace: str | None = NAMESPACE) -> bytes:
    """A document. A child that repeats is written again; the value of a child is text, or its own children."""
    return DECLARATION.encode() + render_root(name, children, namespace=namespace)


def render_root(name: str, children: Iterable[tuple[str, Value]], *, namespace: str | None = NAMESPACE) -> bytes:
    """The same without the declaration in front."""
    start = name if namespace is None else f'{name} xmlns="{namespace}"'
    return "".join((f"<{start}>", *_render(children), f"</{name}>")).encode()


def _render(children: Iterable[tuple[str, Value]]) -> Iterator[str]:
    for name, value in children:
        if isinstance(value, str):
            yield f"<{name}>{_text(value)}</{name}>"
        elif isinstance(value, bool):
            yield f"<{name}>{'true' if value else 'false'}</{name}>"
        elif isinstance(value, int):
            yield f"<{name}>{value}</{name}>"
        else:
            yield f"<{name}>"
            yield from _render(value)
            yield f"</{name}>"


def _text(value: str) -> str:
    escaped = escape(value, {'"': "&quot;"})
    if escaped.isprintable():
        return escaped
    return _CONTROL.sub(lambda match: f"&#x{ord(match[0]):x};", escaped)


@dataclass(slots=True)
class Element:
    """An element of a body that was read; its name is without a namespace."""

    name: str
    text: str = ""
    children: list[Element] = field(default_factory=list)

    def value(self, name: str) -> str | None:
        """The text of the first child of a name; None: there is none."""
        return next((child.text for child in self.children if child.name == name), None)

    def all(self, name: str) -> list[Element]:
        """The children of a name."""
        return [child for child in self.children if child.name == name]


class XmlError(ValueError):
    """A body that is not XML, or is refused."""


def parse(body: bytes) -> Element:
    """The root of a document.

    Raises:
        XmlError: it is no XML; it has a document type; it is too deep.
    """
    root = Element("")
    stack = [root]

    def refuse(*_: Any) -> None:
        raise XmlError("it has a document type, and entities are not read")

    def start(name: str, _: dict[str, str]) -> None:
        if len(stack) > _DEPTH_MAX:
            raise XmlError(f"its elements are more than {_DEPTH_MAX} deep")
        element = Element(name.rpartition(" ")[2])
        stack[-1].children.append(element)
        stack.append(element)

    def end(_: str) -> None:
        stack.pop()

    def add_text(text: str) -> None:
        stack[-1].text += text

    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = add_text
    try:
        parser.Parse(body, True)
    except expat.ExpatError as error:
        raise XmlError(f"it cannot be read: {error}") from error
    return root.children[0]
