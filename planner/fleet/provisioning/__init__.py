"""Plans a fleet: nodes of each type to rent by hour, and the paths of each model on them."""
