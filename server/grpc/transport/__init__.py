"""Calls as gRPC delivers them, of whichever service: read, answered, limited, logged, ended."""
