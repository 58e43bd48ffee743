"""Deployment planning: a profile and requirements come in, a plan goes out."""
