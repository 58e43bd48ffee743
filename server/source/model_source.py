"""Reads the plans and bundles that the settings or admin calls name.

    local path          read in place
    URL of a bundle     fetched to the model cache (models/fetching/cache.py) and read from there
    URL of a plan       read; its bundles, relative to it, are fetched

Admin calls may only name URLs below the operator's prefixes, so that an admin token gives no access to other
hosts that the server can reach. Other clients cannot name URLs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from polyrec.models.bundle.bundle import Bundle, load_bundle
from polyrec.models.fetching.cache import ModelCache
from polyrec.models.fetching.store import read
from polyrec.models.fetching.url import ModelUrl
from polyrec.models.files import MAX_SERVED_BYTES
from polyrec.models.runtimes import best_runtime
from polyrec.planner.plan import Plan, PlanError, PlannedLane, load_plan, parse_plan, single_path_plan
from polyrec.server.app.settings.settings import Settings, SettingsError

LoadedPlan = tuple[Plan, Mapping[Path, Bundle]]
"""A plan, and those of its bundles that are already loaded."""


class ModelSource:
    """Reads plans and applies the settings' limits, policy and tiers to them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def read_for_admin(self, name: str | None, place: Path | ModelUrl | None) -> LoadedPlan:
        """Reads the plan that an admin call names; blocks.

        name: the model's name if there are several.
        place: None for the plan in the settings.
        Raises PolyrecError; SettingsError for a URL that is neither in the settings nor below their prefixes,
        and for a model whose file was removed from the folder of models.
        """
        settings = self._settings
        if place is not None and not isinstance(place, ModelUrl):
            return self.read(place)
        own = settings.plan or settings.bundle
        if name is not None:
            own = settings.model_files().by_name.get(name)
        if place is None and own is None:
            raise SettingsError(
                f"model '{name}' is no longer in the folder --models {settings.models}: put its plan or "
                "bundle back, or name another plan"
            )
        if place is not None and place != own and not settings.allows(place):
            raise SettingsError(f"'{place}' is not below a prefix of the server's --model-urls")
        return self.read(place or own)

    def read(self, place: Path | ModelUrl | None = None) -> LoadedPlan:
        """Reads a plan, or creates one for a bundle; also returns the bundles that it opened. Blocks.

        place: a plan or a bundle folder; None for the one in the settings. Raises PolyrecError.
        """
        settings = self._settings
        place = place or settings.plan or settings.bundle
        assert place is not None
        if isinstance(place, ModelUrl):
            if place.is_plan:
                plan, bundles = self._plan_at(place)
                return settings.apply_to(plan), bundles
            bundle = self._cache().load(place)
        elif place != settings.bundle and not os.path.isdir(place):  # is_dir may raise
            return settings.apply_to(load_plan(place)), {}
        else:
            bundle = load_bundle(place)
        return settings.apply_to(self._plan_of(bundle)), {bundle.path: bundle}

    def _plan_of(self, bundle: Bundle) -> Plan:
        """Creates the plan of a single bundle from the settings."""
        settings = self._settings
        # the path's name of a nested bundle contains its width
        width = settings.width or (bundle.widths[-1] if bundle.widths else None)
        name = bundle.at_width(width).name
        if settings.runtime == "auto":
            runtime, device = best_runtime()
            # an explicit device wins over the best one
            device = settings.device or device
        else:
            runtime, device = settings.runtime, settings.device or "cpu"
        plan = single_path_plan(bundle.path, name, runtime, device, settings.precision, width)
        if settings.lanes > 1 or settings.lane != "auto":
            kind = settings.lane if settings.lane != "auto" else "process"
            lanes = [{"name": f"{device}.{i}", "device": device, "kind": kind} for i in range(settings.lanes)]
            planned = tuple(PlannedLane.model_validate(lane) for lane in lanes)
            plan = plan.model_copy(update={"lanes": planned})
        return plan

    def _plan_at(self, url: ModelUrl) -> tuple[Plan, Mapping[Path, Bundle]]:
        """Reads a plan by URL and fetches its bundles. Raises FetchError, BundleError or PlanError."""
        what = f"plan '{url}'"
        plan = parse_plan(read(url, MAX_SERVED_BYTES), what)
        placement = plan.placement
        if placement is not None and placement.files:
            raise PlanError(
                f"{what}: placement: {' and '.join(placement.files)}: a plan by URL may not name files "
                "of this machine; use the settings (--tier-directory, --store-password-file)"
            )
        if placement is not None and placement.remote is not None and self._settings.store_url is None:
            # anyone who can write there could make the server send the operator's password to any host
            raise PlanError(f"{what}: placement: for a plan by URL, set the store with --store-url")
        places: dict[Path, ModelUrl] = {}
        for path in plan.paths:
            try:
                place = places[path.bundle] = url.beside(path.bundle)
            except ValueError as e:
                raise PlanError(f"{what}: path '{path.name}': {e}") from None
            if not place.is_below(url.folder) and not self._settings.allows(place):
                raise PlanError(
                    f"{what}: path '{path.name}': '{place}' is not in the plan's folder, nor below a prefix "
                    "of the server's --model-urls"
                )
        cache = self._cache()
        bundles = {named: cache.load(place) for named, place in places.items()}
        paths = [p.model_copy(update={"bundle": bundles[p.bundle].path}) for p in plan.paths]
        return plan.model_copy(update={"paths": tuple(paths)}), {b.path: b for b in bundles.values()}

    def _cache(self) -> ModelCache:
        return ModelCache(self._settings.model_cache_folder, self._settings.model_cache_bytes)
