"""The bytes of entries: uploaded, read, and noticed when they changed."""
