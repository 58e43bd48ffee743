"""Draws the initial weights of a model to be trained; models opened from a bundle skip this."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


def draw(initialize: Callable[[Tensor], object], weight: Tensor) -> None:
    """Initializes a weight in place, unless it is on the meta device.

    Bundles are opened on the meta device, where drawing would import torch._dynamo, which takes a second.
    """
    if not weight.is_meta:
        initialize(weight)
