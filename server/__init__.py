"""The running service: HTTP front, lanes, metrics."""
