"""The loop from a server's log back to the server: check, train, evaluate, publish, canary, each recorded."""
