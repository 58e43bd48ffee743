"""Draws plans and sweeps."""
