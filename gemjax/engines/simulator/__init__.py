"""The simulator: a trace is replayed by one compiled program."""
