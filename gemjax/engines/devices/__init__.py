"""The device engine: one scheduler thread, workers on real JAX devices."""
