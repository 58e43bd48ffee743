"""Reports of load tests: one HTML file that needs nothing else, a PNG and the JSON they were made from."""
