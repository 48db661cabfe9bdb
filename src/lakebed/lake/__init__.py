"""A lake: one URL with stores in it. Open it, list its stores and their pins, clean it. Start reading at `lake.py`."""
