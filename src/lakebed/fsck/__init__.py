"""Checking a lake: does everything that something refers to exist, decode and agree? Starts in `check.py`.

Stands beside the stores: it may import any of them, and none of them imports it. It deletes and changes nothing.
"""
