"""Groups of runs for sweeps and claims: one batch runner, one store of finished work, one progress display."""
