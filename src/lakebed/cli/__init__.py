"""The command line: it reads arguments, calls a lake or a store, and prints. Starts in `entry.py`."""
