"""XML of S3: write replies, and read the few bodies of requests.

Owns: escaping, and the limits for bodies. Invariants: a body with a document type, which could define entities, is
refused before anything in it is expanded. Depth and size are limited. A character of a key that XML cannot contain is
written as a character reference, as AWS does.
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
    """Whether XML can contain a text unchanged. Clients read a reference to any other character as an error."""
    return _CONTROL.search(text) is None


def echo(name: str, text: str) -> list[tuple[str, str]]:
    """Return a child with a text of the request; none if clients could not parse the reply because of it."""
    return [(name, text)] if can_hold(text) else []


def render(name: str, children: Iterable[tuple[str, Value]], *, namespace: str | None = NAMESPACE) -> bytes:
    """Render a document. A name may repeat among the children. A child's value is text, or its own children."""
    return DECLARATION.encode() + render_root(name, children, namespace=namespace)


def render_root(name: str, children: Iterable[tuple[str, Value]], *, namespace: str | None = NAMESPACE) -> bytes:
    """As `render`, without the XML declaration."""
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
    escaped_text = escape(value, {'"': "&quot;"})
    if escaped_text.isprintable():
        return escaped_text
    return _CONTROL.sub(lambda match: f"&#x{ord(match[0]):x};", escaped_text)


@dataclass(slots=True)
class Element:
    """An element of a parsed body. Its name has no namespace."""

    name: str
    text: str = ""
    children: list[Element] = field(default_factory=list)

    def value(self, name: str) -> str | None:
        """Return the text of the first child with a name; None: there is none."""
        return next((child.text for child in self.children if child.name == name), None)

    def all(self, name: str) -> list[Element]:
        """Return the children with a name."""
        return [child for child in self.children if child.name == name]


class XmlError(ValueError):
    """A body that is not XML, or that is refused."""


def parse(body: bytes) -> Element:
    """Parse a document, and return its root.

    Raises:
        XmlError: it is not XML; it has a document type; it is too deep.
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
