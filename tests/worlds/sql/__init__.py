"""A model of Spark SQL over lakebed's tables: random statements, which DuckDB judges."""
