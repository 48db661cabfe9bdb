"""The log of a fleet: it keeps the rows that clients appended, in order, until they are committed. See `port`."""
