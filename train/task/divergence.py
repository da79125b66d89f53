"""The margin by which a run counts as diverged, or as no better than before training."""

MARGIN = 0.05  # Share of the initial training loss by which a run must differ from it to count as better or worse.
