"""Training runs of the checkout: data, models and the command line (`python -m train`)."""
