"""Runs a canary beside the stable version: opens it, splits the traffic, rolls back or promotes."""
