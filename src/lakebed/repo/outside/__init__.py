"""Places outside of a repository: which addresses may be reached, and for which repository or key."""
