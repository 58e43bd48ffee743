"""All decisions as pure code: planning, routing and simulation. Starts no processes and reads no clock."""
