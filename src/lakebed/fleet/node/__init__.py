"""Nodes: the tenants attached to them, their timelines, and the transactions in which their files are written."""
