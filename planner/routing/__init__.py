"""Routing: which path answers, on which lane, when, and what is refused. Pure: the clock is passed in."""
