"""The log of a fleet: the rows that clients appended, in order, until they are committed. See `port`."""
