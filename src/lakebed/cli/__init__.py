"""The command line. A face: it reads arguments, calls a lake or a table, and prints. Starts in `main.py`."""
