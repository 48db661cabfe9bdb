"""Old spellings of commands and options, for the error that names the new one. Loaded only for an error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_COMMANDS: Final = {
    "clean": "collect",
    "table create-tag": "table tag",
    "table delete-tag": "table drop-tag",
    "table create-branch": "table branch",
    "table delete-branch": "table drop-branch",
    "table remove-orphan-files": "table collect",
    "kv create-checkpoint": "kv tag",
    "kv refresh-checkpoint": "kv refresh-tag",
    "kv delete-checkpoint": "kv drop-tag",
    "kv list-checkpoints": "kv tags",
    "kv create-clone": "kv branch",
    "kv destroy": "kv drop",
    "kv show-manifest": "kv manifest",
    "kv list-manifests": "kv manifests",
    "repo branch list": "repo branches",
    "repo branch create": "repo branch",
    "repo branch delete": "repo drop-branch",
    "repo branch undelete": "repo undelete-branch",
    "repo branch protect": "repo protect",
    "repo tag list": "repo tags",
    "repo tag create": "repo tag",
    "repo tag delete": "repo drop-tag",
    "repo delete": "repo drop",
    "repo retention show": "repo retention",
    "repo retention set": "repo set-retention",
    "repo retention delete": "repo drop-retention",
    "repo gc": "repo collect",
    "fleet scrub": "fleet collect",
}
_OPTIONS: Final = {
    "table tag --name": "the argument TAG",
    "table replace-tag --name": "the argument TAG",
    "table drop-tag --name": "the argument TAG",
    "table rename-tag --name": "the argument TAG",
    "table rename-tag --to": "the argument NEW",
    "table branch --name": "the argument BRANCH",
    "table drop-branch --name": "the argument BRANCH",
    "table fast-forward --name": "the argument BRANCH",
    "kv tag --name": "the argument CHECKPOINT",
    "kv refresh-tag --id": "the argument CHECKPOINT",
    "kv drop-tag --id": "the argument CHECKPOINT",
    "kv restore --checkpoint": "the argument CHECKPOINT",
    "pipeline status --run-id": "the argument RUN",
    "pipeline report --run-id": "the argument RUN",
    "serve --storage": "the argument LAKE",
    "collect --orphans-older-than": "--grace",
    "table collect --older-than": "--grace",
    "kv collect --min-age": "--grace",
    "kv restore --keep-for": "--lifetime",
    "repo collect --min-age": "--grace",
    "fleet control --settle-ms": "--grace-ms",
}


def hint(words: Sequence[str], option: str | None = None) -> str | None:
    """Return what to write instead of an old spelling; None: the line has none.

    Args:
        words: the command line.
        option: an option on it that does not exist.
    """
    befores = ("", *words)
    names = [
        word
        for before, word in zip(befores, words, strict=False)
        if not word.startswith("-") and before not in ("--path", "--storage-option")
    ]
    for count in (3, 2, 1):
        command = " ".join(names[:count])
        if command in _COMMANDS:
            return f"`lakebed {command}` is now `lakebed {_COMMANDS[command]}`."
        if option is not None and (new := _OPTIONS.get(f"{command} {option}")):
            return f"{option} is now {new}."
    return None
