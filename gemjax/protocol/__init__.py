"""Protocol between methods and engines: pulls, commits, staleness and per-worker state.

The author of a method reads the table at the top of :mod:`gemjax.protocol.hooks`.
"""
