"""Replays of runs in the simulator."""
