"""One training run: its folder, progress, checkpoints and pictures."""
