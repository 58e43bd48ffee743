"""Several models in one server: maps model names to engines, and requests to models."""
