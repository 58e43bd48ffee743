"""Decides about a canary: which requests it answers, how it compares, whether it is rolled back."""
