"""From rows to data files."""
