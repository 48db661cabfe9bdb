"""Tenants: small databases on many nodes, whose transactions a control plane grants. See docs/design/0042-fleet.md."""
