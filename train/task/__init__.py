"""What a configuration trains: data, network, loss, method and simulated cluster."""
