"""Hooks: Python functions and webhooks that run before and after commits and merges.

Owns: `HookCall`, the calls in this process (`Hooks`), and the webhooks, which are a setting of the repository.
Invariants:

- A ``pre-`` hook may refuse the operation, and then nothing has moved. A ``post-`` hook cannot refuse. Its failure is
  reported (`Hooks.failures`, a metric) and not raised.
- Errors show only scheme, host and path of a webhook's URL, because the rest may be secret. They never show a webhook's
  reply.
- Webhooks reach public addresses, and other addresses only if `RepositoryOptions.webhook_hosts` lists them
  (`lakebed.repo.outside.outbound`).
- Hooks run outside every lock. If an operation begins again, its ``pre-`` hooks run again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple, get_args
from urllib.parse import urlsplit

import msgspec

from lakebed.errors import InvalidRequest, LakebedError, Rejected
from lakebed.key_value.port import KeyValue
from lakebed.metrics import default_registry
from lakebed.repo.model.layout import Keys
from lakebed.repo.outside.outbound import AllowedHosts, post
from lakebed.repo.records.records import decode_record, encode_record
from lakebed.runtime import Runtime, ThreadRuntime
from lakebed.texts import host_in_url

HookEvent = Literal["pre-commit", "post-commit", "pre-merge", "post-merge"]
"""``pre-`` events are before the move, and hooks may refuse it. ``post-`` events are after the move."""

_SETTING: Final = "webhooks"
_WEBHOOK_COUNT_MAX: Final = 32
_TIMEOUT_MS_MAX: Final = 60_000
_FAILURE_COUNT_MAX: Final = 100

FAILURES: Final = default_registry.counter(
    "lakebed_repo_hook_failures_total",
    help_text="Hooks that refused, failed or did not answer.",
    label_names=("event",),
)


class HookCall(msgspec.Struct, frozen=True):
    """The argument of a hook; a webhook gets it as JSON."""

    event: str
    repository: str
    branch: str
    """The branch that gets the commit or merge."""
    commit_id: str
    """Id of the new commit; in a hook that runs before, the id that it will have."""
    parents: tuple[str, ...]
    metarange_id: str
    """Content hash of what the commit holds."""
    message: str
    committer: str
    metadata: dict[str, str]
    source: str = ""
    """Of a merge, the reference that is merged."""


class HookFailure(NamedTuple):
    """The failure of a ``post-`` hook."""

    hook: str
    call: HookCall
    reason: str


class Webhook(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A webhook. Stored: DO NOT CHANGE its fields; add at the end, with a default."""

    name: str
    url: str
    """``http://`` or ``https://``."""
    events: tuple[HookEvent, ...]
    timeout_ms: int = 10_000


class _Webhooks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    webhooks: tuple[Webhook, ...] = ()


Hook = Callable[[HookCall], None]


class Hooks:
    """The hooks of one open repository. Thread-safe.

    Args:
        key_value: the store of the repository's settings; None: there are no webhooks.
        allowed: hosts that webhooks may reach although their addresses are not public.
    """

    def __init__(
        self,
        *,
        key_value: KeyValue | None = None,
        keys: Keys | None = None,
        runtime: Runtime | None = None,
        allowed: AllowedHosts | None = None,
    ) -> None:
        self._lock = (runtime or ThreadRuntime()).lock()
        self._key_value = key_value
        self._keys = keys
        self.allowed = allowed or AllowedHosts()
        """Hosts that webhooks and actions may reach although their addresses are not public."""
        self._registered: tuple[tuple[HookEvent, str, Hook], ...] = ()
        self.failures: deque[HookFailure] = deque(maxlen=_FAILURE_COUNT_MAX)
        """The latest failures of ``post-`` hooks."""

    def __repr__(self) -> str:
        return f"Hooks(functions={len(self._registered)}, failures={len(self.failures)})"

    def register(self, event: HookEvent, hook: Hook, *, name: str | None = None) -> None:
        """Call a function at an event, in this process only. An error at a ``pre-`` event refuses the operation.

        Args:
            name: its name in errors; by default the function's name.

        Raises:
            InvalidRequest: kind ``invalid_hook``: there is no such event.
        """
        _check_event(event)
        hook_name = name or str(getattr(hook, "__name__", type(hook).__name__))
        with self._lock:
            self._registered = (*self._registered, (event, hook_name, hook))

    def remove(self, hook: Hook) -> None:
        """Unregister a function from every event."""
        with self._lock:
            self._registered = tuple(entry for entry in self._registered if entry[2] is not hook)

    def run_before(self, call: HookCall) -> None:
        """Call every hook of a ``pre-`` event, in the order of registration, then the webhooks.

        Raises:
            Rejected: kind ``hook_rejected``: a hook refused, failed or did not answer in time.
        Cost: no request if there are no webhooks.
        """
        for name, reason, error in self._run(call, until_failure=True):
            raise Rejected(
                f"The {call.event} hook {name!r} refused it: {reason}. Nothing was changed; correct what it reports, "
                "and try again.",
                kind="hook_rejected",
                hook=name,
                event=call.event,
                branch=call.branch,
            ) from error

    def run_after(self, call: HookCall) -> list[HookFailure]:
        """Call every hook of a ``post-`` event. Never raises.

        Returns:
            The failures, which are also added to `failures`.
        """
        failures = [HookFailure(name, call, reason) for name, reason, _ in self._run(call, until_failure=False)]
        self.failures.extend(failures)
        return failures

    def _run(self, call: HookCall, *, until_failure: bool) -> list[tuple[str, str, BaseException | None]]:
        failures: list[tuple[str, str, BaseException | None]] = []
        for event, name, hook in self._registered:
            if event == call.event and not (failures and until_failure):
                error = _call_hook(hook, call)
                if error is not None:
                    failures.append((name, str(error) or type(error).__name__, error))
        try:
            posted = [webhook for webhook in self._webhooks() if call.event in webhook.events]
        except LakebedError as error:
            if until_failure:
                raise  # nothing has moved yet
            failures.append(("webhooks", str(error), error))
            posted = []
        for webhook in posted:
            if not (failures and until_failure):
                reason = _post(webhook, call, allowed=self.allowed)
                if reason is not None:
                    failures.append((webhook.name, reason, None))
        FAILURES.add(len(failures), call.event)
        return failures

    def _webhooks(self) -> tuple[Webhook, ...]:
        if self._key_value is None or self._keys is None:
            return ()
        return webhooks(self._key_value, keys=self._keys)


def _call_hook(hook: Hook, call: HookCall) -> Exception | None:
    """Call a hook, and return the exception that it raised. A hook may raise any exception, so all are caught."""
    try:
        hook(call)
    except Exception as error:
        return error
    return None


def _post(webhook: Webhook, call: HookCall, *, allowed: AllowedHosts) -> str | None:
    """Call a webhook, and return why it refused or failed; None: it accepted.

    The request is neither retried nor redirected, because it may have effects.
    """
    shown_url = redact_url(webhook.url)
    try:
        status = post(
            webhook.url,
            msgspec.json.encode(call),
            timeout_ms=webhook.timeout_ms,
            allowed=allowed,
            owner=call.repository,
        )
    except LakebedError as error:
        return f"{shown_url} {error.message}"
    return None if 200 <= status < 300 else f"{shown_url} answered {status}"


def webhooks(key_value: KeyValue, *, keys: Keys) -> tuple[Webhook, ...]:
    """The webhooks of a repository, as this process knows them. Raises `Corruption`. Cost: no request."""
    key = keys.setting(_SETTING)
    raw = key_value.peek(key)
    return () if raw is None else decode_record(raw, _Webhooks, key=key).webhooks


def set_webhooks(key_value: KeyValue, *, keys: Keys, hooks: Sequence[Webhook]) -> None:
    """Replace all webhooks of a repository.

    Raises:
        InvalidRequest: kind ``invalid_hook``: a URL, an event or a timeout is invalid, a name occurs twice, or there
            are too many.
    Cost: 1 write of the key-value store.
    """
    if len(hooks) > _WEBHOOK_COUNT_MAX:
        raise _invalid(f"{len(hooks)} webhooks were given, and a repository has at most {_WEBHOOK_COUNT_MAX}")
    for hook in hooks:
        _check_webhook(hook)
    if len({hook.name for hook in hooks}) < len(hooks):
        raise _invalid("Two webhooks have one name: give each its own")
    key_value.set(keys.setting(_SETTING), encode_record(_Webhooks(tuple(hooks))))


def _check_webhook(hook: Webhook) -> None:
    try:
        parts = urlsplit(hook.url)
        is_usable = (
            parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        )
    except ValueError:
        is_usable = False
    if not hook.name or not is_usable:
        raise _invalid("A webhook has a name and a URL that begins with http:// or https:// and a host")
    if not 0 < hook.timeout_ms <= _TIMEOUT_MS_MAX:
        raise _invalid(f"The webhook {hook.name!r} waits {hook.timeout_ms:,} ms: give 1 to {_TIMEOUT_MS_MAX:,}")
    if not hook.events:
        raise _invalid(f"The webhook {hook.name!r} has no event: give some of {', '.join(get_args(HookEvent))}")
    for event in hook.events:
        _check_event(event)


def _check_event(event: str) -> None:
    if event not in get_args(HookEvent):
        raise _invalid(f"There is no event {event!r}: a hook runs at one of {', '.join(get_args(HookEvent))}")


def _invalid(sentence: str) -> InvalidRequest:
    return InvalidRequest(f"{sentence}.", kind="invalid_hook")


def redact_url(url: str) -> str:
    """A URL without the parts that may be secret: user, password and query."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port is not None else ""
    return f"{parts.scheme}://{host_in_url(parts.hostname or '')}{port}{parts.path}"
