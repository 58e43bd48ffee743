"""Pictures of plans and sweeps, as PNG: what is chosen where, what lies where, what more would give."""
