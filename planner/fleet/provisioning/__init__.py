"""Plans a fleet: how many nodes of each type to rent by hour, and which paths of each model run on them."""
