"""A pipeline file -> `Document`: its parts, with variables and loops not yet applied, each with its line.

Owns: the structure of the file (top-level keys, loops, steps). `plan` reads the values later, when variables are known.
Pure; needs neither Spark nor a store.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from lakebed.errors import InvalidRequest, NotFound
from lakebed.pipeline.nodes import Items, Mapping, Scalar, SourceLocation, compose, nearest
from lakebed.pipeline.steps import KINDS

_TOP_KEYS = ("name", "lake", "branch", "table_branch", "vars", "tables", "steps")
_PIPELINE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


@dataclass(frozen=True, slots=True)
class StepNode:
    """One step as written."""

    kind: str
    name: Scalar | None
    settings: Mapping
    """The step's own keys."""
    location: SourceLocation


@dataclass(frozen=True, slots=True)
class Loop:
    """One ``for_each`` with the steps that it repeats."""

    variables: Mapping
    body: tuple[StepNode | Loop, ...]
    location: SourceLocation


@dataclass(frozen=True, slots=True)
class Document:
    """A pipeline file, read but not yet planned."""

    file: str
    folder: str
    """Absolute folder of the file: the value of ``${here}``."""
    name: str
    lake: Scalar
    variables: dict[str, Scalar]
    """Declared variables. The caller must give those whose scalar is null."""
    tables: Mapping
    steps: tuple[StepNode | Loop, ...]
    location: SourceLocation
    branch: Scalar | None = None
    """``repository/branch`` to work in."""
    table_branch: Scalar | None = None
    """The branch of each table to write to."""


def load(path: str | Path) -> Document:
    """Read a pipeline file.

    Raises `NotFound`: the file does not exist; `InvalidRequest`: an error in it, with file and line.
    """
    source = Path(path)
    try:
        text = source.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise NotFound(
            f"There is no pipeline file '{path}' in {Path.cwd()}: check the path.", path=str(path)
        ) from error
    except IsADirectoryError as error:
        raise InvalidRequest(f"'{path}' is a folder: name the pipeline file in it.", path=str(path)) from error
    except OSError as error:
        raise InvalidRequest(
            f"The pipeline file '{path}' cannot be read: {error.strerror or error}.", path=str(path)
        ) from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"The pipeline file '{path}' is not UTF-8: the byte {error.start} cannot be read as text.", path=str(path)
        ) from error
    return parse(text, file=str(path), folder=str(source.resolve().parent))


def parse(text: str, *, file: str = "pipeline", folder: str = ".") -> Document:
    """Read the text of a pipeline file; `file` names it in errors."""
    root = compose(text, file=file)
    if not isinstance(root, Mapping):
        raise root.location.error("a pipeline is a mapping with the keys `name`, `lake` and `steps`.")
    for key, entry in root.entries.items():
        if key not in _TOP_KEYS:
            raise entry.location.error(f"a pipeline has no key '{key}'.{nearest(key, _TOP_KEYS)}")
    steps = root.get("steps")
    if not isinstance(steps, Items) or not steps.items:
        location = root.location if steps is None else steps.location
        raise location.error("a pipeline needs `steps`: a list with at least one step.")
    return Document(
        file=file,
        folder=folder,
        name=_name(root),
        lake=_require(root, "lake", "the URL or folder of the lake"),
        variables=_variables(root),
        tables=_mapping(root, "tables"),
        steps=_body(steps),
        location=root.location,
        branch=_optional(root, "branch", "the branch to work in, as <repository>/<branch>"),
        table_branch=_optional(root, "table_branch", "the branch of each table to write to until it is published"),
    )


def _name(root: Mapping) -> str:
    name = _require(root, "name", "a short name for the pipeline")
    if not _PIPELINE_NAME.fullmatch(name.text):
        raise name.location.error(
            f"the pipeline's name may have lower-case letters, digits, '-' and '_' (at most 63), not '{name.text}'."
        )
    return name.text


def _require(root: Mapping, key: str, what: str) -> Scalar:
    value = root.get(key)
    if value is None or (isinstance(value, Scalar) and value.is_null):
        raise root.location.error(f"a pipeline needs the key `{key}`: {what}.")
    if not isinstance(value, Scalar):
        raise value.location.error(f"`{key}` must be one value: {what}.")
    return value


def _optional(root: Mapping, key: str, what: str) -> Scalar | None:
    value = root.get(key)
    if value is not None and not isinstance(value, Scalar):
        raise value.location.error(f"`{key}` must be one value: {what}.")
    return None if value is None or value.is_null else value


def _mapping(root: Mapping, key: str) -> Mapping:
    value = root.get(key)
    if value is None or (isinstance(value, Scalar) and value.is_null):
        return Mapping({}, root.location)
    if not isinstance(value, Mapping):
        raise value.location.error(f"`{key}` must be a mapping.")
    return value


def _variables(root: Mapping) -> dict[str, Scalar]:
    variables: dict[str, Scalar] = {}
    for name, entry in _mapping(root, "vars").entries.items():
        if name == "here" or not name.isidentifier():
            raise entry.location.error(f"'{name}' cannot be a variable's name.")
        if not isinstance(entry.value, Scalar):
            raise entry.value.location.error(f"the variable '{name}' must be one value.")
        variables[name] = entry.value
    return variables


def _body(items: Items) -> tuple[StepNode | Loop, ...]:
    return tuple(_step_or_loop(item) for item in items.items)


def _step_or_loop(node: object) -> StepNode | Loop:
    assert isinstance(node, Scalar | Items | Mapping)
    if not isinstance(node, Mapping):
        raise node.location.error("a step is a mapping that begins with `step: <kind>` (or `for_each:` with `steps:`).")
    if "for_each" in node.entries:
        return _loop(node)
    kind = node.get("step")
    if not isinstance(kind, Scalar):
        raise node.location.error(f"a step needs the key `step`: one of {', '.join(sorted(KINDS))}.")
    if kind.text not in KINDS:
        raise kind.location.error(f"there is no step '{kind.text}'.{nearest(kind.text, KINDS)}")
    name = node.get("name")
    if name is not None and not isinstance(name, Scalar):
        raise name.location.error("a step's `name` must be one value.")
    entries = {key: entry for key, entry in node.entries.items() if key not in ("step", "name")}
    key_names = {key.name for key in KINDS[kind.text].keys}
    for key, entry in entries.items():
        if key not in key_names:
            raise entry.location.error(f"step '{kind.text}' has no key '{key}'.{nearest(key, key_names)}")
    return StepNode(kind.text, name, Mapping(entries, node.location), node.location)


def _loop(node: Mapping) -> Loop:
    for key, entry in node.entries.items():
        if key not in ("for_each", "steps"):
            raise entry.location.error(f"a loop has only `for_each` and `steps`, not '{key}'.")
    variables, body = node.get("for_each"), node.get("steps")
    if not isinstance(variables, Mapping) or not variables.entries:
        raise node.location.error("`for_each` needs a variable with its values, such as `day: {in: 2013-01}`.")
    if not isinstance(body, Items) or not body.items:
        raise node.location.error("a loop needs `steps`: a list with at least one step.")
    return Loop(variables, _body(body), node.location)
