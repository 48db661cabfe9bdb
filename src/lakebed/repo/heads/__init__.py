"""Operations that change a branch: writes, commits, merges, imports, and the compaction of its staging area."""
