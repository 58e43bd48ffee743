"""Trains on a server's log and serves the result, step by step: check, train, evaluate, publish, canary."""
