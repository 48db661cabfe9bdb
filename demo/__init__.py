"""The demo: a year of real flights through a lakebed pipeline. Run it with ``make demo``."""
