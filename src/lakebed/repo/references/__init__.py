"""Commits, branches and tags, and how a text becomes one of them."""
