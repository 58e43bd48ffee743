"""Limits of gRPC clients: calls in progress, messages being read, open streams."""
