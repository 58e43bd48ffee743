"""Python clients of a server over HTTP: `Client` and `AsyncClient`. Imports no model and no server."""
