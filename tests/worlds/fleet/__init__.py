"""Fleets in simulated worlds, and the design of their transactions as a searched state machine."""
