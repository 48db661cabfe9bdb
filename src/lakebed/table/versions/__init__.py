"""Verbs on versions: rollback, fast-forward, automatic tags, system tables, and why a file is there."""
