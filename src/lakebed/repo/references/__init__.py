"""Commits, branches and tags, and how a reference's text is resolved to one of them."""
