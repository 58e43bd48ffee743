"""The front door: the command line, assembled from the rooms."""
