"""Several models in one server: the engine of each by name, and the addresses of each."""
