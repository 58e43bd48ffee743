"""Every decision, as pure code: numbers in, a choice out."""
