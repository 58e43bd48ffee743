"""Profiles paths: synthetic requests, one worker process per path, a log of samples, fitted latency
models.
"""
