"""Tenants: small databases on many nodes. A control plane grants their transactions. See docs/design/0042-fleet.md."""
