"""What moves the head of a branch: writes, commits, merges, imports, compaction of what is staged."""
