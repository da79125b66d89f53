"""The parts of all commands that are independent of training: errors, files, signals, this machine."""
