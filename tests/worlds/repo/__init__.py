"""Repositories: their model, their simulated world, workloads on real ones, and fixtures of tests."""
