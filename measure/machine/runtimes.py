"""Finds the runtimes that work on a device, by executing a product with each."""

from __future__ import annotations

from polyrec.models.runtimes.registry import RuntimeName, runtimes_for, why_unusable


def working_runtimes(device: str, unusable: dict[str, str]) -> tuple[RuntimeName, ...]:
    """Returns the runtimes that execute on a device; adds why others do not to `unusable`."""
    working = []
    for name in runtimes_for(device):
        why = why_unusable(name, device)
        if why is None:
            working.append(name)
        else:
            unusable[f"{name} on {device}"] = why
    return tuple(working)
