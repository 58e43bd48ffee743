"""Enumerates the paths to measure, with names: bundles x widths x runtimes x devices x dense precisions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.bundle.manifest import with_width
from polyrec.models.dlrm.precision import DensePrecision
from polyrec.models.embeddings.computed import ComputedStage, HybridStage
from polyrec.models.embeddings.store import bytes_per_row
from polyrec.models.runtimes.registry import RuntimeName, runtime_kind
from polyrec.planner.devices import Device
from polyrec.planner.plan import PlannedPath, single_path_plan
from polyrec.planner.profile import Memory


@dataclass(frozen=True, slots=True)
class Candidate:
    """A path to measure.

    bundle: loaded, at the path's width. identity: changes when anything that affects measurements changes.
    """

    path: PlannedPath
    bundle: Bundle
    identity: str

    @property
    def name(self) -> str:
        return self.path.name


def best_runtimes(device: Device) -> tuple[RuntimeName, ...]:
    """Returns the default runtimes of a device: onnx on a CPU, torch elsewhere, if they work."""
    preferred: RuntimeName = "onnx" if device.kind == "cpu" else "torch"
    return (preferred,) if preferred in device.runtimes else device.runtimes[:1]


def candidates(
    bundles: Mapping[str, Bundle],
    devices: Sequence[Device],
    runtimes: Sequence[RuntimeName] | None,
    precisions: Sequence[DensePrecision] | None,
    beside: Path,
    versions: str,
) -> list[Candidate]:
    """Returns all candidates, bundle by bundle, including each nested width.

    bundles: by the label to use if several have the same representation. runtimes: None: the best of each
    device.
    precisions: None: all that a runtime supports. beside: folder that bundle paths are relative to.
    versions: of the software, part of the identity.
    """
    names = [b.name for b in bundles.values()]
    found: list[Candidate] = []
    for label, bundle in ((n, view) for n, whole in bundles.items() for view in whole.by_width()):
        base = bundle.name
        if names.count(bundle.at_width(None).name) > 1:
            base = with_width(label, bundle.width)
        for device in devices:
            known = best_runtimes(device) if runtimes is None else runtimes
            for runtime in (r for r in known if r in device.runtimes):
                # a device's first runtime has the plain name, as in `polyrec serve`
                called = (
                    base if runtime == next(r for r in known if r in device.runtimes) else f"{base}.{runtime}"
                )
                for precision in runtime_kind(runtime).precisions(device.name):
                    if precisions is not None and precision not in precisions:
                        continue
                    where = relative(bundle.path, beside)
                    plan = single_path_plan(where, called, runtime, device.name, precision, bundle.width)
                    version = f"{bundle.manifest.version} {bundle.width or ''}".rstrip()
                    identity = f"{version} {runtime} {device.name} {precision} {versions}"
                    found.append(Candidate(plan.paths[0], bundle, identity))
    return found


def relative(bundle: Path, folder: Path) -> Path:
    """Returns the bundle's path relative to `folder`; keeps absolute paths."""
    return bundle if bundle.is_absolute() else Path(os.path.relpath(bundle, folder))


def path_memory(bundle: Bundle, peak: int) -> Memory:
    """Returns the memory of a path: rows by table, fixed bytes (decoders, net), and peak.

    Nested widths share rows, so each of them needs whole rows.
    """
    stage = bundle.at_width(None).stage()
    precision = bundle.manifest.representation.precision
    each = bytes_per_row(stage.width, precision)
    tables = dict.fromkeys(bundle.manifest.schema_.tables, 0)
    computed = stage.computed if isinstance(stage, HybridStage) else stage
    if not isinstance(computed, ComputedStage) or isinstance(stage, HybridStage):
        for table in tables:
            tables[table] += bundle.encoder.vocabularies[table].rows * each
    if isinstance(computed, ComputedStage):
        for table, cut in zip(computed.rows.tables, computed.cuts.tolist(), strict=True):
            tables[table] += cut * each
    numbers = sum(t.numel() * t.element_size() for t in stage.state_dict().values())
    net = sum(p.numel() * p.element_size() for p in bundle.net().parameters())
    return Memory(tables=tables, fixed=numbers - sum(tables.values()) + net, peak=peak)
