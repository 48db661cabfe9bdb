"""One URL with stores in it: open a lake, see what it holds, what pins it, and clean it. Starts in `lake.py`."""
