"""The check of a lake: whether every referenced object exists, decodes and agrees. Start reading at `check.py`.

It may import any store, and no store imports it. It deletes and changes nothing.
"""
