"""Parts of a run beside its commits: checkpoints, evaluations, the line of progress, signals."""
