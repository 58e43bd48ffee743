"""Plans a service on many nodes: nodes to rent, autoscaling, and the choice of a replica for a request."""
