"""What all commands share and what knows nothing of training: errors, files, signals, this machine."""
