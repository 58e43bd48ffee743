"""The router on virtual lanes in virtual time, and the bound that no policy passes."""
