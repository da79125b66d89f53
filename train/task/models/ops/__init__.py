"""Array operations of the networks."""
