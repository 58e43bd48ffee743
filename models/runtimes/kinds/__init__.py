"""One module per runtime, named like it, with a `KIND`; models/runtimes/registry.py finds them here."""
