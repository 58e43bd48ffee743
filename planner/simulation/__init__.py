"""Simulates the router on virtual lanes in virtual time, and computes an upper bound for any policy."""
