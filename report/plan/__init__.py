"""Pictures of plans and sweeps."""
