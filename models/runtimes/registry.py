"""Finds runtimes by name, and imports one only when it is used.

A runtime is a module in polyrec/models/runtimes/kinds with the runtime's name, whose `KIND` describes it
(polyrec.models.runtimes.runtime.RuntimeKind). Other distributions add runtimes through an entry point:

    [project.entry-points."polyrec.runtimes"]
    xla = "my_package.xla:KIND"
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator

from polyrec.models.errors import RuntimeUnavailable

if TYPE_CHECKING:
    from polyrec.models.runtimes.runtime import RuntimeKind

GROUP = "polyrec.runtimes"
"""Group of entry points."""
KINDS = Path(__file__).parent / "kinds"


@cache
def runtime_names() -> tuple[str, ...]:
    """Returns all names in alphabetical order; their libraries may not be installed."""
    return tuple(sorted(_own_names() | {point.name for point in entry_points(group=GROUP)}))


def _own_names() -> set[str]:
    return {module.name for module in pkgutil.iter_modules([str(KINDS)])}


@cache
def runtime_kind(name: str) -> RuntimeKind:
    """Imports a runtime and returns its description.

    Raises RuntimeUnavailable if there is no such runtime or its library is not installed.
    """
    try:
        if name in _own_names():
            found: RuntimeKind = import_module(f"polyrec.models.runtimes.kinds.{name}").KIND
            return found
        for point in entry_points(group=GROUP, name=name):
            found = point.load()
            return found
    except ImportError as e:
        raise RuntimeUnavailable(f"runtime '{name}' is not installed: {e}") from None
    raise RuntimeUnavailable(f"no runtime '{name}'; known: {', '.join(runtime_names())}")


def why_unusable(name: str, device: str) -> str | None:
    """Executes a product with a runtime on a device; returns why that fails, or None."""
    try:
        return runtime_kind(name).probe(device)
    except RuntimeUnavailable as e:
        return str(e)


def runtimes_for(device: str) -> tuple[str, ...]:
    """Returns the installed runtimes that support this kind of device (`cuda` for `cuda:0`)."""
    found = []
    for name in runtime_names():
        try:
            known = runtime_kind(name).devices
        except RuntimeUnavailable:
            continue
        if device.partition(":")[0] in known:
            found.append(name)
    return tuple(found)


def registered(name: str) -> str:
    """Returns the name unchanged. Raises ValueError if there is no runtime of this name."""
    if name not in runtime_names():
        raise ValueError(f"no runtime '{name}'; known: {', '.join(runtime_names())}")
    return name


RuntimeName = Annotated[str, AfterValidator(registered)]
"""Name of a runtime in a file or a setting."""
