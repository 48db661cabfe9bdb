"""The log-structured engine: sorted files, memtable, merge, compaction and cache. Knows no log, no manifest, no pins.

A store gives it files to read (`FileStore`), a way to make a new set of files the version (`VersionPublisher`)
and, when it keeps history, the oldest sequence that must stay readable. `lakebed.kv` is the first such store.
"""
