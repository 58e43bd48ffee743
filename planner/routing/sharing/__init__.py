"""Several models on one machine: pools of lanes, the time of each model in them, and whose batch is next."""
