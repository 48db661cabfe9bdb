"""Databases: their model, their simulated world, and fixtures of tests."""
