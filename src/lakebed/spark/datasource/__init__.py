"""The Python data source ``lakebed``."""
