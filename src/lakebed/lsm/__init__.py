"""The log-structured engine: sorted files, memtable, merge, compaction and cache. Knows no log, no manifest, no pins.

A store provides the files to read (`FileStore`), a way to make a new set of files the version (`VersionPublisher`) and,
if it keeps history, the oldest sequence that must stay readable. `lakebed.kv` is the first such store.
"""
