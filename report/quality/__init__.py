"""The report of a comparison: a folder with a page, its text, its numbers and its pictures."""
