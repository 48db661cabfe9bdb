"""The table of groups and commands: name, help and module. Importing it imports no module of commands."""

from __future__ import annotations

from typing import Final

from lakebed.cli.grammar import LAKE_VARIABLE
from lakebed.cli.parser import Group

_ANSWERS: Final = frozenset(
    (
        *(
            "ls",
            "history",
            "pins",
            "why",
            "fsck",
            "version",
            "completion",
            "describe",
            "read",
            "diff",
            "changes",
            "tags",
        ),
        *("branches", "system", "get", "scan", "stats", "manifest", "manifests", "list", "show", "status", "stat"),
        *("blame", "retention", "txns", "events", "tenants", "timelines"),
    )
)
"""Words of commands whose only result is their output."""
_ANSWERS_OF_GROUPS: Final = frozenset({("repo", "log"), ("key", "create"), ("key", "rotate")})
"""More such commands, with their groups: in other groups the words mean something else. A secret is shown once."""


def is_answer(path: tuple[str, ...]) -> bool:
    """Whether a command fails if its output cannot be written. Any other command has still done its work then."""
    return path[-1] in _ANSWERS or path in _ANSWERS_OF_GROUPS


_GROUPS: Final = (
    Group(
        "table",
        "Tables: create, read, write, tag, time travel, roll back, expire.",
        {
            "table_schemas": (
                *("create", "describe", "drop", "add-column", "drop-column", "rename-column", "widen-column"),
                *("set-option", "unset-option"),
            ),
            "table_rows": ("read", "append", "upsert", "write", "overwrite", "delete", "diff", "changes", "system"),
            "table_tags": ("tags", "tag", "replace-tag", "rename-tag", "drop-tag", "expire-tags"),
            "table_versions": (
                *("history", "why", "branches", "branch", "rename-branch", "drop-branch", "fast-forward", "rollback"),
                *("expire", "compact", "collect"),
            ),
            "table_exchange": ("import", "export"),
            "table_fsck": ("fsck",),
        },
    ),
    Group(
        "kv",
        "Databases of keys and values. A tag is a checkpoint, which pins a version; a branch is a clone, which shares "
        "files.",
        {
            "kv_keys": ("get", "put", "delete", "scan", "stats"),
            "kv_databases": ("create", "branch", "restore", "drop", "manifest", "manifests"),
            "kv_checkpoints": ("tag", "refresh-tag", "drop-tag", "tags", "why"),
            "kv_upkeep": ("collect", "compact"),
        },
    ),
    Group(
        "repo",
        "Repositories: branches, commits and merges over a data lake, and collecting their garbage.",
        {
            "repo_repositories": (
                *("create", "list", "drop", "retention", "set-retention", "drop-retention", "collect"),
            ),
            "repo_references": (
                *("branches", "branch", "drop-branch", "undelete-branch", "protect", "tags", "tag", "drop-tag"),
            ),
            "repo_directories": ("upload", "download"),
            "repo_lakefs": ("import-lakefs", "export-lakefs"),
            "repo_objects": ("put", "get", "ls", "stat", "rm", "import"),
            "repo_versions": (
                *("commit", "log", "show", "why", "diff", "status", "merge", "revert", "cherry-pick", "reset"),
                *("rebase", "compact", "blame"),
            ),
        },
    ),
    Group(
        "fleet",
        "Tenants: small databases on many nodes. Start a fleet, read and write, branch, move tenants, watch.",
        {
            "fleet_up": ("up",),
            "fleet_processes": ("control", "node", "log"),
            "fleet_operators": (
                *("status", "txns", "events", "migrate", "attach-reader", "drain", "decommission", "ack", "collect"),
            ),
            "fleet_tenants": (
                *("create", "drop", "tenants", "policy", "timelines", "create-timeline", "branch", "pin", "why"),
                *("restore", "detach", "drop-timeline", "commit"),
            ),
            "fleet_keys": ("put", "get", "delete", "scan"),
        },
    ),
    Group(
        "key",
        "Access keys of a server: who may read, write or administer which repositories.",
        {"access_keys": ("create", "list", "rotate", "revoke")},
    ),
    Group(
        "pipeline",
        "Pipelines: ingest, merge, audit, tag, compact, expire and report, through Spark.",
        {"pipelines": ("run", "status", "report")},
    ),
)

ROOT: Final = Group(
    "",
    "Versioned tables, databases, repositories and tenants on object storage.\n\n"
    "A command is lakebed STORE VERB LAKE NAME ...: the kind of store, what to do, the lake, the store's name. "
    f"Commands without a lake use the one in the environment variable {LAKE_VARIABLE}.",
    {
        "lakes": ("ls", "history", "pins", "why", "collect"),
        "lake_fsck": ("fsck",),
        "serve": ("serve",),
        "about": ("version", "completion"),
    },
    summaries={
        "ls": "List the stores of a lake: newest version, rows, bytes, pins.",
        "history": "List the versions that can be read, oldest first, including pinned ones.",
        "pins": "List what keeps versions alive, and the bytes that only it holds.",
        "why": "Show which pins and versions need an object, or when it may be deleted.",
        "fsck": "Check that everything a lake refers to exists and is readable; change nothing unless asked to repair.",
        "collect": "Delete what nothing needs: expired tags, snapshots, checkpoints; orphans; dropped stores.",
        "serve": "Serve the repositories of a lake over HTTP, as lakeFS clients expect them, until interrupted.",
        "version": "Print lakebed's version.",
        "completion": 'Print the completion script of a shell: `eval "$(lakebed completion bash)"`.',
    },
    groups=_GROUPS,
)
