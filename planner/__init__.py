"""Every decision as pure code: planning, routing, simulation. Starts no process and reads no clock."""
