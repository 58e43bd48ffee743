"""The report of a load test: one HTML file that needs nothing else, a PNG and the JSON it was made from."""
