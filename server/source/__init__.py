"""Reads a server's plans and bundles from local files, or by URL from an object store or web server."""
