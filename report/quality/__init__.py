"""Writes the report of a model comparison: a folder with a page, its text, its numbers and its pictures."""
