"""Repositories: branches, a staging area that is compacted, commits and merges over a data lake."""
