"""The data sets of the training runs."""
