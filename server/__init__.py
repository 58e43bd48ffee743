"""The running service: HTTP and gRPC fronts, dispatch to lanes, metrics and life cycle."""
