"""The race: the same network with and without a barrier, against wall-clock seconds."""
