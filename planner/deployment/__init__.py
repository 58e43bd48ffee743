"""What to deploy where: a profile and what is asked in, a plan out."""
