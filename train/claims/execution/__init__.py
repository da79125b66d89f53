"""How the runs of claims are made and kept."""
