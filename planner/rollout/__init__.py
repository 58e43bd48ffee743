"""Rollout of another version beside the one that serves: pure decisions."""
