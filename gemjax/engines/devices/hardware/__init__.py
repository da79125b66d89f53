"""Compiled programs, placements, transfers and threads of the device engine."""
