"""The parts of a training run: data, network, loss, method and simulated cluster."""
