"""Benchmarks of the engines, the methods and the networks."""
