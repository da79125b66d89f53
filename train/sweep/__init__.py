"""Sweeps over methods, numbers of workers and hyper-parameters."""
