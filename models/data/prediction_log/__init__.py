"""Reads prediction logs: requests that a server answered, joined with labels that arrived later."""
