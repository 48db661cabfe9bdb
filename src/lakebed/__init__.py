"""lakebed: pin, fork, roll back and clean data on object storage."""

__version__ = "0.1.0"
