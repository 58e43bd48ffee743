"""A plan's placement, opened: which paths have their rows in tiers, and the stacks that hold them.

One stack serves all paths of a bundle on a device, through all lanes there. A placement that puts all rows of
a path into its device's own memory asks for no tiers: the path is opened as without one, and pays nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.embeddings.computed import HybridStage
from polyrec.models.errors import RuntimeUnavailable
from polyrec.models.schema.encoder import Encoder
from polyrec.models.tiers import placement as tiers
from polyrec.models.tiers.placement import PAGE_BYTES
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.stage import open_tiers
from polyrec.models.tiers.updates.changes import Changes
from polyrec.models.tiers.updates.drift import Drift
from polyrec.planner.placement import DIRECTORY, PlacedPath, Placement
from polyrec.planner.plan import Plan, PlanError, PlannedPath
from polyrec.server.dispatch.prefetcher import Ahead
from polyrec.server.tiers.drift import Following, Told
from polyrec.server.tiers.update_store import Updated

log = logging.getLogger("polyrec.serving")

CACHE_BYTES: int = tiers.Placement.model_fields["cache_bytes"].default
Place = tuple[Path, str]
"""A bundle on a device."""


@dataclass(slots=True)
class Placed:
    """The open tiers of one generation.

    stacks: by the name of every path that has its rows there; paths of one bundle on a device have the same.
    changes: of those rows, by the same names; they stay when the tiers close.
    ahead: reads for queries that wait, if anything lies on disk. following: sees to new orders of the rows.
    """

    stacks: dict[str, TierStack] = field(default_factory=dict)
    changes: dict[str, Changes] = field(default_factory=dict)
    ahead: Ahead | None = None
    following: Following | None = None
    closing: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def distinct(self) -> tuple[TierStack, ...]:
        return tuple({id(stack): stack for stack in self.stacks.values()}.values())

    def begin(self) -> None:
        """All lanes are open: rows may change places."""
        if self.following is not None:
            self.following.begin()

    def close(self) -> None:
        """Ends all tiers, once no batch is gathered any more; may block for seconds."""
        with self.closing:
            if self.following is not None:
                self.following.close()
            if self.ahead is not None:
                self.ahead.close()
            for stack in self.distinct:
                stack.close()
            self.stacks = {}


def open_placed(
    plan: Plan, bundles: Mapping[Path, Bundle], encoders: Mapping[str, Encoder], told: Told, updated: Updated
) -> Placed:
    """Fills the tiers of a plan; blocks for as long as its rows take to copy.

    encoders: by path, ready for requests. told: hears of every new order of the rows. updated: the changes of
    rows that have been served, which the tiers have from the start.
    Raises PlanError: what the plan wants cannot be; RuntimeUnavailable: this machine cannot.
    """
    placed, placement = Placed(), plan.placement
    if placement is None:
        return placed
    owners: dict[Place, TierStack] = {}
    try:
        for place, (own, planned) in _wanted(plan, placement).items():
            _refuse_processes(plan, planned)
            bundle = bundles[planned.bundle]
            changes = updated.of(bundle, planned.device, placement.directory or DIRECTORY)
            stack = _opened(planned, bundle, own, placement, encoders[planned.name], changes)
            owners[place] = stack
            for other in plan.paths:
                if (other.bundle, other.device) == place:
                    placed.stacks[other.name] = stack
                    placed.changes[other.name] = changes
        _prepare(placed, plan, placement, bundles, told)
    except BaseException:
        for stack in owners.values():
            stack.close()
        raise
    return placed


def _wanted(plan: Plan, placement: Placement) -> dict[Place, tuple[PlacedPath, PlannedPath]]:
    """What is to be opened for each place, the widest of its paths' cuts.

    Where one path has all rows in memory its bundle's others find them there, too.
    """
    where = {placed.path: placed for placed in placement.paths}
    found: dict[Place, tuple[PlacedPath, PlannedPath]] = {}
    whole: set[Place] = set()
    for planned in plan.paths:
        place, own = (planned.bundle, planned.device), where.get(planned.name)
        if own is None or not spread(own, planned.device):
            whole.add(place)
        elif place not in found or own.rows(_near(planned.device)) > found[place][0].rows(
            _near(planned.device)
        ):
            found[place] = own, planned
    return {place: wanted for place, wanted in found.items() if place not in whole}


def spread(placed: PlacedPath, device: str) -> bool:
    """Whether a path has rows beyond its device's own memory."""
    return any(placed.rows(tier) for tier in ("device", "host", "disk", "remote") if tier != _near(device))


def _near(device: str) -> str:
    return "host" if device == "cpu" else "device"


def _refuse_processes(plan: Plan, planned: PlannedPath) -> None:
    for lane in plan.all_lanes():
        if lane.device == planned.device and lane.kind == "process":
            raise PlanError(
                f"path '{planned.name}' has rows in tiers, which belong to the server's process: lane "
                f"'{lane.name}' cannot be a process; make its kind thread (or inline)"
            )


def _opened(
    planned: PlannedPath,
    bundle: Bundle,
    own: PlacedPath,
    placement: Placement,
    encoder: Encoder,
    changes: Changes,
) -> TierStack:
    if own.rows("device") and planned.runtime != "torch":
        raise PlanError(
            f"path '{planned.name}': {planned.runtime} looks rows up on the host; put none on the device"
        )
    given = tiers.Placement(
        cuts=own.tables,
        directory=placement.directory or DIRECTORY,
        remote=placement.remote,
        cache_bytes=max(own.cache_bytes, PAGE_BYTES) if own.cache_bytes else CACHE_BYTES,
    )
    start = time.perf_counter()
    try:
        stack = open_tiers(bundle, given, planned.device, encoder, changes)
    except RuntimeUnavailable as e:
        raise RuntimeUnavailable(f"path '{planned.name}': {e}") from None
    log.info("tiers of %s are open after %.1f s", planned.name, time.perf_counter() - start)
    return stack


def _prepare(
    placed: Placed, plan: Plan, placement: Placement, bundles: Mapping[Path, Bundle], told: Told
) -> None:
    """What works on the tiers beside the requests."""
    on_disk: dict[int, tuple[TierStack, Bundle]] = {}
    drifts: dict[str, Drift] = {}
    seen: list[TierStack] = []
    for i, planned in enumerate(plan.paths):
        stack = placed.stacks.get(planned.name)
        if stack is None:
            continue
        bundle = bundles[planned.bundle]
        # an inline lane has taken what waits before anything could be read ahead
        if (
            placement.prefetch
            and stack.tiers.disk is not None
            and "inline" not in _kinds(plan, planned.device)
        ):
            on_disk[i] = stack, bundle
        if placement.drift_s is None or any(stack is other for other in seen):
            continue
        seen.append(stack)
        if isinstance(bundle.stage(), HybridStage):
            log.warning("path '%s' stays in its order: a hybrid computes vectors by rank", planned.name)
        else:
            drifts[planned.name] = Drift(stack)
    if on_disk:
        placed.ahead = Ahead(on_disk)
    if drifts and placement.drift_s is not None:
        placed.following = Following(drifts, placement.drift_s, told)


def _kinds(plan: Plan, device: str) -> Sequence[str]:
    return [lane.kind for lane in plan.all_lanes() if lane.device == device]
