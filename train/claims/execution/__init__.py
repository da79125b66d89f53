"""Making and keeping the runs of claims."""
