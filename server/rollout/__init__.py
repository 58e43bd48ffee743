"""Rollouts: runs a canary version beside the stable one, splits the traffic, and rolls back or promotes."""
