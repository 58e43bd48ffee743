"""Extras of the installation that verbs need: `pip install polyrec` brings what serving needs, no more."""

from __future__ import annotations

from importlib.util import find_spec

from polyrec.models.errors import PolyrecError

MODULES = {"cluster": ("aiohttp", "ray"), "plan": ("scipy", "tqdm"), "train": ("tqdm",)}
"""Extra of pyproject.toml -> the modules that it brings."""
NEEDS = {
    **dict.fromkeys(("calibrate", "distill", "evaluate", "import", "loop", "pack", "train"), ("train",)),
    **dict.fromkeys(("bench", "plan", "profile", "simulate"), ("plan",)),
    "cluster": ("cluster",),
    "demo": ("plan", "train"),
}
"""Verb -> the extras without which it cannot run. Reports need `report`, which their options check."""


def require_extras(verb: str) -> None:
    """Raises PolyrecError, with the pip command, where an extra that the verb needs is not installed."""
    extras = NEEDS.get(verb, ())
    missing = sorted({m for extra in extras for m in MODULES[extra] if find_spec(m) is None})
    if missing:
        raise PolyrecError(
            f"'polyrec {verb}' needs {' and '.join(missing)}, not installed here: "
            f"pip install 'polyrec[{','.join(extras)}]'"
        )
