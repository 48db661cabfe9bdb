"""The key-value store under repositories and fleets: one port and its implementations.

`port` defines what every implementation promises. `database` and `postgres` implement it. `open_key_value` in
`lakebed.key_value.open` chooses the implementation by URL. Importing this package costs nothing.
"""
