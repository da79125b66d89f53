"""Parts of a run beside its commits: evaluations, the line of progress, signals."""
