"""Tables as DataFrames: reading and writing."""
