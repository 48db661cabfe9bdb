"""Uncommitted data: the write protocol, the layered view, differences from the head, cleanup."""
