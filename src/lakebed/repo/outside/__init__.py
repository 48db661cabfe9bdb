"""Places outside of a repository: which addresses may be reached, and by whom."""
