"""The static prefix: host rows located by arithmetic, which are released to the cache if that is better."""
