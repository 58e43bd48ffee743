"""Provides Python clients of a server over HTTP: `Client` and `AsyncClient`. Imports no model or server
code.
"""
