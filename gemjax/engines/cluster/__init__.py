"""The cluster engine: asynchronous training over many hosts on Ray."""
