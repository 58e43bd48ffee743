"""Deduplication of rows (RecD): which rows of a batch are equal, and which features repeat together."""
