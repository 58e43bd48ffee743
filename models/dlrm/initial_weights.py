"""Draws initial weights, of models that are trained: those that are opened get theirs from a bundle."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


def draw(initialize: Callable[[Tensor], object], weight: Tensor) -> None:
    """Initializes a weight in place, unless it is on the meta device.

    Bundles are opened there, and drawing on it imports torch._dynamo: a second for nothing.
    """
    if not weight.is_meta:
        initialize(weight)
