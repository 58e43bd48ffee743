"""Plans a service of many nodes: choice of a replica, autoscaling, nodes to rent."""
