"""Measuring paths: requests drawn by popularity, one worker process a path, samples kept as they come."""
