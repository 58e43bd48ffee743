"""Writes reports of load tests: one self-contained HTML file, a PNG, and the JSON behind them."""
