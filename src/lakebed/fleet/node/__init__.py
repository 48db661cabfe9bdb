"""Nodes: tenants that are attached, their timelines, and the transactions in which their files are written."""
