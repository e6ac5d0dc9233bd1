"""The HTTP API: the same front doors as the command line, one tenant at a time. `app.py` is where it is put together."""
