"""Routing: admission control, batching and the choice of paths, as pure code; callers pass the time."""
