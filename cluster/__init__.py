"""Replicas of a server on the nodes of a Ray cluster, and the balancer in front of them (docs/cluster.md)."""
