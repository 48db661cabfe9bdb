"""The key-value store under repositories and fleets: one port, and what can stand behind it.

`port` says what every implementation promises; `database` and `postgres` are the implementations; `open_key_value`
in `lakebed.key_value.open` chooses by URL. Importing this package costs nothing.
"""
