"""When a run counts as diverged, or as no better than before training."""

MARGIN = 0.05  # By how much of the training loss before training a run must have moved to count as better or worse.
