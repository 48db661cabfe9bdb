"""Files of actions: what they may contain, and which events run them. Pure.

An action is a YAML file below ``_lakefs_actions/`` of a commit, in lakeFS's format: events with patterns of branches,
and hooks. Invariant: a file that asks for anything unsupported is refused as a whole, with an explanation. An action
that only seems to check would be worse than none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, get_args
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import yaml

from lakebed.errors import InvalidRequest
from lakebed.texts import format_value

ACTIONS_PREFIX: Final = "_lakefs_actions/"
ACTION_FILES_MAX: Final = 100
"""Most files of actions in a commit; more are refused."""
ACTION_BYTES_MAX: Final = 64 << 10
"""Size of the largest file."""
TIMEOUT_MS_MAX: Final = 60_000
_HOOKS_MAX: Final = 32
_TEXT_MAX: Final = 8_192
_UNREADABLE: Final = (yaml.YAMLError, ValueError, OverflowError, RecursionError, AttributeError, IndexError, KeyError)
"""The errors of the loader; the last three for a tag that does not fit its value, such as ``!!bool x``."""

ActionEvent = Literal[
    "pre-commit",
    "post-commit",
    "pre-merge",
    "post-merge",
    "pre-create-branch",
    "post-create-branch",
    "pre-delete-branch",
    "post-delete-branch",
    "pre-create-tag",
    "post-create-tag",
    "pre-delete-tag",
    "post-delete-tag",
]
"""``pre-`` events are before any change, and a hook that fails prevents the change."""

_CONDITIONS: Final = ("", "success()", "failure()", "always()")
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}", re.ASCII)
_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)(ms|s|m|h)", re.ASCII)
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_RESERVED_HEADERS: Final = frozenset(
    ("host", "content-length", "content-type", "transfer-encoding", "connection", "expect", "upgrade", "te", "trailer")
)
_VARIABLE: Final = re.compile(r"\{\{.*?\}\}")


@dataclass(frozen=True, slots=True)
class ActionHook:
    """A hook of an action.

    Attributes:
        condition: when it runs: ``success()`` or empty: if no hook before it failed; ``failure()``; ``always()``.
        url: includes the query parameters of the file.
        refusal: why it cannot run; empty: it can.
    """

    id: str
    condition: str = ""
    url: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    timeout_ms: int = TIMEOUT_MS_MAX
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Action:
    """An action: events, and the hooks that they run.

    Attributes:
        events: patterns of branches by event; no patterns: all branches.
    """

    name: str
    events: Mapping[str, tuple[str, ...]]
    hooks: tuple[ActionHook, ...]

    def concerns(self, event: str, branch: str) -> bool:
        """Whether an event on a branch runs this action."""
        patterns = self.events.get(event)
        return patterns is not None and (not patterns or any(fnmatchcase(branch, pattern) for pattern in patterns))


def parse_action(raw: bytes, *, file: str) -> Action:
    """Parse the action in a file.

    Raises:
        InvalidRequest: kind ``invalid_action``: it is not an action, or asks for anything unsupported.
    """
    try:
        if len(raw) > ACTION_BYTES_MAX:
            raise _invalid(f"it has more than {ACTION_BYTES_MAX:,} bytes")
        document = _load(raw)
        _check_names(document, {"name", "description", "on", "hooks"}, where="the file")
        events = _parse_events(document.get("on"))
        hooks = document.get("hooks")
        if not isinstance(hooks, list) or not 0 < len(hooks) <= _HOOKS_MAX:
            raise _invalid(f"it has no list of 1 to {_HOOKS_MAX} hooks")
        parsed_hooks = tuple(map(_parse_hook, hooks))
        if len({hook.id for hook in parsed_hooks}) < len(parsed_hooks):
            raise _invalid("two of its hooks have one id")
        name = document.get("name")
        return Action(name if isinstance(name, str) and name else file, events, parsed_hooks)
    except InvalidRequest as error:
        raise InvalidRequest(
            f"The action {file} cannot be used: {error.message} Change the file.", kind="invalid_action", file=file
        ) from error


def _load(raw: bytes) -> dict[Any, Any]:
    if raw.count(b"&") + raw.count(b"*") > 100:  # nested aliases would expand without limit
        raise _invalid("it has too many anchors, aliases or stars")
    try:
        document = yaml.load(raw, Loader=_Loader)
    except _UNREADABLE as error:
        raise _invalid(f"it is not YAML ({str(error).splitlines()[0][:200]})") from error
    if not isinstance(document, dict):
        raise _invalid("it is not a mapping")
    return document


class _Loader(yaml.SafeLoader):
    """Loads plain data. As in YAML 1.2, ``on`` is a text."""


_Loader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _parse_events(value: Any) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, dict) or not value:
        raise _invalid("it has no events below `on`")
    events: dict[str, tuple[str, ...]] = {}
    for event, settings in value.items():
        if event not in get_args(ActionEvent):
            raise _invalid(
                f"the event {format_value(event)[:50]} is not served; these are: {', '.join(get_args(ActionEvent))}"
            )
        branches: Any = None
        if settings is not None:
            if not isinstance(settings, dict):
                raise _invalid(f"the event {event} has something else than `branches` below it")
            _check_names(settings, {"branches"}, where=f"the event {event}")
            branches = settings.get("branches")
        if branches is None:
            branches = []
        if not isinstance(branches, list) or not all(isinstance(pattern, str) for pattern in branches):
            raise _invalid(f"the branches of the event {event} are not a list of texts")
        if branches and event.endswith("-tag"):
            raise _invalid(f"the event {event} has branches, and tags are on none")
        events[event] = tuple(branches)
    return events


def _parse_hook(value: Any) -> ActionHook:
    if not isinstance(value, dict):
        raise _invalid("a hook is not a mapping")
    _check_names(value, {"id", "type", "description", "if", "properties"}, where="a hook")
    id, kind, condition = value.get("id"), value.get("type"), value.get("if") or ""
    if not isinstance(id, str) or _ID.fullmatch(id) is None:
        raise _invalid("a hook has no id of letters, digits, - and _")
    if condition not in _CONDITIONS:
        raise _invalid(f"the hook {id} has an `if` that is none of success(), failure() and always()")
    if kind in ("lua", "airflow"):
        return ActionHook(
            id, condition, refusal=f"Hooks of the type {kind} are not run by this server: use one of the type webhook."
        )
    if kind != "webhook":
        raise _invalid(f"the hook {id} is of an unknown type: use webhook")
    properties = value.get("properties")
    if not isinstance(properties, dict):
        raise _invalid(f"the hook {id} has no properties")
    _check_names(properties, {"url", "timeout", "query_params", "headers"}, where=f"the properties of the hook {id}")
    query = [
        pair for name, values in _texts(properties, "query_params", hook=id).items() for pair in _pairs(name, values)
    ]
    headers = _parse_headers(_texts(properties, "headers", hook=id), hook=id)
    url = _parse_url(properties.get("url"), query, hook=id)
    variable = next((text for text in (url, *sum(headers, ()), *sum(query, ())) if _VARIABLE.search(text)), None)
    if variable is not None:
        refusal = "Variables ({{ ... }}) are not replaced by this server: write the value itself."
        return ActionHook(id, condition, refusal=refusal)
    return ActionHook(id, condition, url, headers, _parse_timeout(properties.get("timeout"), hook=id))


def _pairs(name: str, values: Any) -> list[tuple[str, str]]:
    return [(name, value) for value in (values if isinstance(values, list) else [values])]


def _texts(properties: Mapping[Any, Any], name: str, *, hook: str) -> dict[str, Any]:
    """Parse a mapping of texts to texts, or for query parameters to lists of texts."""
    given = properties.get(name)
    if given is None:
        return {}
    is_plain = isinstance(given, dict) and all(
        isinstance(key, str)
        and all(
            isinstance(text, str) and len(text) <= _TEXT_MAX for text in (value if isinstance(value, list) else [value])
        )
        for key, value in given.items()
    )
    if not is_plain:
        raise _invalid(f"{name} of the hook {hook} are not texts: write them in quotes")
    return dict(given)


def _parse_headers(properties: dict[str, Any], *, hook: str) -> tuple[tuple[str, str], ...]:
    for name, value in properties.items():
        is_usable = _HEADER.fullmatch(name) is not None and name.lower() not in _RESERVED_HEADERS
        if not is_usable or not isinstance(value, str) or not value.isprintable():
            raise _invalid(f"the header {name[:50]!r} of the hook {hook} cannot be sent")
        try:
            value.encode("latin-1")
        except UnicodeEncodeError as error:
            raise _invalid(f"the header {name[:50]!r} of the hook {hook} has letters that no header has") from error
    return tuple(properties.items())


def _parse_url(value: Any, query: list[tuple[str, str]], *, hook: str) -> str:
    try:
        parts = urlsplit(value) if isinstance(value, str) and value.isprintable() else urlsplit("")
        is_usable = (
            parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        )
    except ValueError:
        is_usable = False
    if not is_usable:
        raise _invalid(f"the hook {hook} has no url that begins with http:// or https:// and a host")
    if not query:
        return str(value)
    pairs = [*parse_qsl(parts.query, keep_blank_values=True), *query]
    return urlunsplit((parts.scheme, parts.netloc, parts.path, urlencode(pairs), ""))


def _parse_timeout(value: Any, *, hook: str) -> int:
    """Parse a duration in Go's form, such as ``1m30s``; in milliseconds."""
    if value is None or value == "":
        return TIMEOUT_MS_MAX
    # Only a text is shown: lists that refer to one another may not fit in memory when they are written out.
    text = value if isinstance(value, str) else ""
    pieces = _DURATION.findall(text)
    total_ms = round(sum(float(number) * _UNITS_MS[unit] for number, unit in pieces))
    if "".join(number + unit for number, unit in pieces) != text or not 0 < total_ms <= TIMEOUT_MS_MAX:
        raise _invalid(f"the timeout {text[:50]!r} of the hook {hook} is no time of up to a minute, such as '30s'")
    return total_ms


def _check_names(properties: Mapping[Any, Any], known_names: set[str], *, where: str) -> None:
    unknown_names = [name for name in properties if name not in known_names]
    if unknown_names:
        raise _invalid(f"{where} has {format_value(unknown_names[0])[:50]}, which means nothing here")


def _invalid(sentence: str) -> InvalidRequest:
    return InvalidRequest(f"{sentence}.", kind="invalid_action")
