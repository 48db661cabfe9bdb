"""The bytes of entries: upload and read them, and detect changes of them."""
