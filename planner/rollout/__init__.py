"""Decides about a canary: which requests it gets, how it compares, and whether to roll back or promote."""
