"""Deployment planning: turns a profile and requirements into a plan."""
