"""The report on a finished run."""
