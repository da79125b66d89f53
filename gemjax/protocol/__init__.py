"""The protocol between methods and engines: pulls, commits, staleness state and slots per worker."""
