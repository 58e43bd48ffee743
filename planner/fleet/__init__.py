"""Many nodes as one service: which replica answers a query, and how many nodes of which type to rent."""
