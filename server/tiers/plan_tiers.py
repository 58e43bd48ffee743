"""Opens the tiers of a plan's placement: one stack for each bundle on a device, shared by its paths and
lanes.

A path whose rows are all in its device's own memory has no tiers and no overhead for them. If its rows may be
updated, it has a single tier, that memory.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.embeddings.computed import HybridStage
from polyrec.models.embeddings.table import TableStage
from polyrec.models.errors import RuntimeUnavailable
from polyrec.models.schema.encoder import Encoder
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.stage import open_tiers, stored_rows
from polyrec.models.tiers.tier_settings import PAGE_BYTES, TierCuts, TierSettings
from polyrec.models.tiers.updates.changes import Changes
from polyrec.models.tiers.updates.drift import Drift
from polyrec.planner.placement import DIRECTORY, PlacedPath, Placement, own_tier
from polyrec.planner.plan import Plan, PlanError, PlannedPath
from polyrec.server.dispatch.cold_rows import ColdRows
from polyrec.server.dispatch.prefetcher import Prefetcher
from polyrec.server.tiers.drift import DriftFollower, OnMoves
from polyrec.server.tiers.update_store import UpdateStore

log = logging.getLogger("polyrec.serving")

CACHE_BYTES: int = TierSettings.model_fields["cache_bytes"].default
Place = tuple[Path, str]
"""A bundle on a device."""


@dataclass(slots=True)
class TierSet:
    """The open tiers of one generation.

    stacks: by path, for paths with rows in tiers; paths of one bundle on a device share a stack.
    changes: updates of those rows, by path; they outlive the tiers.
    prefetcher: reads pages for waiting queries, if any row is on disk. cold_rows: replaces it if the plan
    holds queries whose rows are in slow tiers. drift: reorders rows, if enabled.
    """

    stacks: dict[str, TierStack] = field(default_factory=dict)
    changes: dict[str, Changes] = field(default_factory=dict)
    prefetcher: Prefetcher | None = None
    cold_rows: ColdRows | None = None
    drift: DriftFollower | None = None
    closing: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def distinct(self) -> tuple[TierStack, ...]:
        return tuple({id(stack): stack for stack in self.stacks.values()}.values())

    def begin(self) -> None:
        """Starts following drift; call once all lanes are open."""
        if self.drift is not None:
            self.drift.begin()

    def close(self) -> None:
        """Closes all tiers. No batch may be gathered afterwards; may block for seconds."""
        with self.closing:
            if self.drift is not None:
                self.drift.close()
            if self.prefetcher is not None:
                self.prefetcher.close()
            if self.cold_rows is not None:
                self.cold_rows.close()
            for stack in self.distinct:
                stack.close()
            self.stacks = {}


def open_tier_set(
    plan: Plan,
    bundles: Mapping[Path, Bundle],
    encoders: Mapping[str, Encoder],
    on_moves: OnMoves,
    update_store: UpdateStore,
) -> TierSet:
    """Opens and fills the tiers of a plan; blocks while rows are copied.

    encoders: by path. on_moves: called after each reordering of rows. update_store: earlier updates of rows,
    which the tiers apply from the start.
    Raises PlanError for an impossible placement, RuntimeUnavailable for one that this machine cannot hold.
    """
    tier_set, placement = TierSet(), plan.placement or Placement(paths=())
    owners: dict[Place, TierStack] = {}
    to_open = _paths_to_open(plan, placement)
    if update_store.in_memory:
        to_open |= _in_memory(plan, bundles, set(to_open))
    try:
        for place, (placed, planned) in to_open.items():
            bundle = bundles[planned.bundle]
            shared = _shared(plan, planned, bundle, placed)
            changes = update_store.changes_of(bundle, planned.device, placement.directory or DIRECTORY)
            encoder = encoders[planned.name]
            stack = _open_stack(planned, bundle, placed, placement, encoder, changes, shared)
            owners[place] = stack
            for other in plan.paths:
                if (other.bundle, other.device) == place:
                    tier_set.stacks[other.name] = stack
                    tier_set.changes[other.name] = changes
        _add_background_work(tier_set, plan, placement, bundles, on_moves)
    except BaseException:
        for stack in owners.values():
            stack.close()
        raise
    return tier_set


def _paths_to_open(plan: Plan, placement: Placement) -> dict[Place, tuple[PlacedPath, PlannedPath]]:
    """Returns, for each place that needs tiers, the path with the most rows in its device's own memory.

    If one path of a bundle has all rows in memory, the others read them there and need no tiers.
    """
    placed_by_path = {placed.path: placed for placed in placement.paths}
    found: dict[Place, tuple[PlacedPath, PlannedPath]] = {}
    in_memory: set[Place] = set()
    for planned in plan.paths:
        place, placed = (planned.bundle, planned.device), placed_by_path.get(planned.name)
        tier = own_tier(planned.device)
        if placed is None or not placed.needs_tiers(planned.device):
            in_memory.add(place)
        elif place not in found or placed.rows(tier) > found[place][0].rows(tier):
            found[place] = placed, planned
    return {place: paths for place, paths in found.items() if place not in in_memory}


def _in_memory(
    plan: Plan, bundles: Mapping[Path, Bundle], others: set[Place]
) -> dict[Place, tuple[PlacedPath, PlannedPath]]:
    """Returns placements in the device's own memory for places, except `others`, whose rows can be updated.

    Updates must reach all paths of a place. Logs places whose rows cannot be updated.
    """
    found: dict[Place, tuple[PlacedPath, PlannedPath]] = {}
    refused: set[Place] = set()
    for planned in plan.paths:
        place, bundle = (planned.bundle, planned.device), bundles[planned.bundle]
        if place in others or place in refused:
            continue
        rows, tier = stored_rows(bundle), own_tier(planned.device)
        if not rows:
            continue
        placed = PlacedPath(path=planned.name, tables={t: TierCuts(**{tier: n}) for t, n in rows.items()})
        try:
            _require_places(planned, placed)
            _shared(plan, planned, bundle, placed)
            found.setdefault(place, (placed, planned))
        except PlanError as e:
            refused.add(place)
            found.pop(place, None)
            log.warning("no updates of rows: %s", e)
    return found


def _shared(plan: Plan, planned: PlannedPath, bundle: Bundle, placed: PlacedPath) -> bool:
    """Returns whether lanes in other processes read the rows in host memory.

    Raises PlanError if such a lane would need rows that only the server's process can read.
    """
    lanes = [lane for lane in plan.all_lanes() if (lane.device, lane.kind) == (planned.device, "process")]
    if not lanes:
        return False
    stage = bundle.stage()
    if isinstance(stage, HybridStage):
        stage = stage.table
    if placed.rows("device") or not isinstance(stage, TableStage):
        what = "on a device" if placed.rows("device") else "of a computed representation"
        raise PlanError(
            f"path '{planned.name}' has rows {what} in tiers, which only the server's process can read: lane "
            f"'{lanes[0].name}' cannot be a process; make its kind thread (or inline)"
        )
    return True


def _open_stack(
    planned: PlannedPath,
    bundle: Bundle,
    placed: PlacedPath,
    placement: Placement,
    encoder: Encoder,
    changes: Changes,
    shared: bool,
) -> TierStack:
    _require_places(planned, placed)
    cuts = TierSettings(
        cuts=placed.tables,
        directory=placement.directory or DIRECTORY,
        remote=placement.remote,
        shared=shared,
        cache_bytes=max(placed.cache_bytes, PAGE_BYTES) if placed.cache_bytes else CACHE_BYTES,
    )
    start = time.perf_counter()
    try:
        stack = open_tiers(bundle, cuts, planned.device, encoder, changes)
    except RuntimeUnavailable as e:
        raise RuntimeUnavailable(f"path '{planned.name}': {e}") from None
    log.info("tiers of %s are open after %.1f s", planned.name, time.perf_counter() - start)
    return stack


def _require_places(planned: PlannedPath, placed: PlacedPath) -> None:
    """Raises PlanError if the path's runtime cannot read rows of the device's tier."""
    if placed.rows("device") and planned.runtime != "torch":
        raise PlanError(
            f"path '{planned.name}': {planned.runtime} looks rows up on the host; put none on the device"
        )


def _add_background_work(
    tier_set: TierSet, plan: Plan, placement: Placement, bundles: Mapping[Path, Bundle], on_moves: OnMoves
) -> None:
    """Adds prefetching and drift following if the plan enables them."""
    tiered = {
        i: (tier_set.stacks[planned.name], bundles[planned.bundle])
        for i, planned in enumerate(plan.paths)
        if planned.name in tier_set.stacks
    }
    slow = {i: found for i, found in tiered.items() if placement.popular_first and found[0].waits}
    if slow:
        tier_set.cold_rows = ColdRows(slow)
    # an inline lane has executed a query before anything could be prefetched for it
    inline = {lane.device for lane in plan.all_lanes() if lane.kind == "inline"}
    on_disk = {
        i: (stack, bundle)
        for i, (stack, bundle) in tiered.items()
        if i not in slow
        and placement.prefetch
        and stack.tiers.disk is not None
        and plan.paths[i].device not in inline
    }
    if on_disk:
        tier_set.prefetcher = Prefetcher(on_disk)
    if placement.drift_s is not None:
        drifts = _drifts(plan, placement, tiered)
        if drifts:
            tier_set.drift = DriftFollower(drifts, placement.drift_s, on_moves)


def _drifts(
    plan: Plan, placement: Placement, tiered: Mapping[int, tuple[TierStack, Bundle]]
) -> dict[str, Drift]:
    """Returns the drift of stacks whose rows may move, by their first path's name. tiered: by path index."""
    drifts: dict[str, Drift] = {}
    seen: list[TierStack] = []
    for i, (stack, bundle) in tiered.items():
        planned = plan.paths[i]
        if any(stack is other for other in seen):
            continue
        if not stack.waits and own_tier(planned.device) == "host":
            continue  # all rows are in one tier
        seen.append(stack)
        if isinstance(bundle.stage(), HybridStage):
            log.warning("path '%s' stays in its order: a hybrid computes vectors by rank", planned.name)
        else:
            drifts[planned.name] = Drift(stack, placement.drift_memory, every=placement.drift_every)
    return drifts
