"""Generates load for a server: queries and arrivals, Locust users, the open-loop driver, policy
comparisons.
"""
