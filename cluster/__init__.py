"""Runs replicas of a server on the nodes of a Ray cluster, behind a load balancer (docs/cluster.md)."""
