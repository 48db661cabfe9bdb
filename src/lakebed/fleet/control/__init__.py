"""The control plane: it grants transactions, places tenants, and replaces nodes that do not answer."""
