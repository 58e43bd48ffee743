"""Skips these tests if the extra `cluster` is not installed."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("ray") and find_spec("aiohttp") else ["test_*.py"]
