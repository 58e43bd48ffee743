"""How many nodes of which type to rent by hour, and which paths of which models run on them."""
