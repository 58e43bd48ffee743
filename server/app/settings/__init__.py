"""The settings of a server, read from flags and environment variables."""
