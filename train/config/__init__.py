"""The configuration of a run and its command line."""
