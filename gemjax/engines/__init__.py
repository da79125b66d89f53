"""Engines produce or consume traces and drive the pure functions of the protocol; they contain no mathematics."""
