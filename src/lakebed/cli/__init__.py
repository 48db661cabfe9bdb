"""The command line: it parses arguments, calls a lake or a store, and prints. Starts in `entry.py`."""
