"""Routing: admission control, batching and the choice of paths. Pure: callers pass the time."""
