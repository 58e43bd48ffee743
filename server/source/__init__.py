"""Where a server's models come from: local files, or an object store or web server by URL."""
