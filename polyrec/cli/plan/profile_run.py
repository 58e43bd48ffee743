"""Runs `polyrec profile`: measures paths, tiers, the front and the hop to a lane, with progress on stderr."""

from __future__ import annotations

import argparse
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from polyrec.measure.profile.candidates import Candidate
    from polyrec.measure.profile.log import SampleLog
    from polyrec.measure.profile.measure import ProfileSettings
    from polyrec.measure.profile.quality import PathQuality
    from polyrec.models.bundle.bundle import Bundle
    from polyrec.models.data.split import Splitter
    from polyrec.planner.devices import Machine
    from polyrec.planner.plan import LaneKind, PlannedPath
    from polyrec.planner.profile import Front, Hop, Profile
    from polyrec.planner.tier_times import CutTimes

FRONT_SECONDS = 6.0
HOP_SECONDS = 3.0
MIN_RATE = 0.2
"""Share of positive rows below which accuracy at 0.5 misleads."""
FRONT_ROWS = 23
"""Rows of a usual request: the front is measured with the path that is fastest at it."""


def measure_profile(args: argparse.Namespace) -> Profile:
    """Measures a profile and writes it, again after each later part. Raises ProfileError."""
    import torch

    from polyrec.cli.train.evaluate import labels_of
    from polyrec.measure.machine.discover import discover
    from polyrec.measure.profile.measure import path_profile
    from polyrec.measure.profile.quality import quality_differences
    from polyrec.models.bundle.bundle import load_bundle
    from polyrec.models.schema.shared_ids import obstacle
    from polyrec.planner.profile import Profile, ProfileError

    _check_flags(args)
    torch.set_num_threads(1)
    labels = labels_of(args.bundles)
    bundles = {labels[path]: load_bundle(path) for path in args.bundles}
    unlike = obstacle({path: bundles[labels[path]].encoder for path in args.bundles})
    if unlike is not None:
        raise ProfileError(f"bundles {unlike}")
    given = _given_qualities(args, labels, bundles)
    # reports data that cannot be read, or have no test rows, before the work
    splitter = _splitter(args.data, bundles) if args.data else None
    out = Path(args.out)
    print("detecting devices ...", file=sys.stderr)
    machine = discover(out.parent).machine
    found = _candidates(args, bundles, machine)
    settings = _settings(args, machine)
    with _sample_log(args, settings, machine) as log:
        if not args.data:
            _qualities(args, found, bundles, given, log)  # reports a missing figure before the work
        found = _measure_paths(found, settings, log, out.parent)
        cpu_wait = _cpu_wait(found, settings, log)
        qualities = _qualities(args, found, bundles, given, log, splitter)
        if args.precisions is None:
            found, qualities = _without_losing_precisions(found, qualities)
        if args.metric == "accuracy":
            _warn_of_few_positives(qualities)
        profile = Profile(
            machine=machine,
            paths=tuple(path_profile(c, settings, log, qualities[c.name]) for c in found),
            metric=args.metric,
            differences=quality_differences(qualities),
            cpu_wait=cpu_wait,
        )
        _save(profile, out)
        if args.tiers:
            profile = profile.model_copy(update={"cut_times": _cut_times(found, settings, log, out.parent)})
            _save(profile, out)
        log.remove()
    if args.front:
        profile = profile.model_copy(update=_outside_lanes(profile, found, args.seed))
        _save(profile, out)
    return profile


def _splitter(data: str, bundles: Mapping[str, Bundle]) -> Splitter:
    """Returns the splitter of the data. Raises DataError if any bundle's schema leaves no test rows."""
    from polyrec.models.data.reader import open_data
    from polyrec.models.data.split import require_test_rows

    found: Splitter | None = None
    for bundle in bundles.values():
        schema = bundle.manifest.schema_
        reader = open_data(data, schema)
        if found is None or found.split != schema.split:
            found = require_test_rows(reader, schema)
    assert found is not None
    return found


def _candidates(args: argparse.Namespace, bundles: Mapping[str, Bundle], machine: Machine) -> list[Candidate]:
    """Returns the paths to measure. Raises ProfileError if there are none."""
    from polyrec.measure.machine.discover import chosen
    from polyrec.measure.profile.candidates import candidates
    from polyrec.planner.profile import ProfileError

    found = candidates(
        {label.replace("/", "-"): bundle for label, bundle in bundles.items()},
        chosen(machine, args.devices),
        _split_names(args.runtimes),
        _split_names(args.precisions),
        Path(args.out).parent,
        _versions(),
    )
    if not found:
        raise ProfileError(
            "there is no path to measure: the devices have none of the runtimes and precisions"
        )
    return found


def _settings(args: argparse.Namespace, machine: Machine) -> ProfileSettings:
    from polyrec.measure.profile.measure import ProfileSettings, eviction_bytes

    caches = [size for device in machine.devices for size in device.caches.values()]
    return ProfileSettings(args.max_rows, args.seconds, eviction_bytes(max(caches, default=0)), args.seed)


@contextmanager
def _sample_log(args: argparse.Namespace, settings: ProfileSettings, machine: Machine) -> Iterator[SampleLog]:
    """Opens the measurements of an interrupted run beside --out, or a new file for them."""
    from polyrec.measure.profile.log import SampleLog

    out = Path(args.out)
    file = out.with_name(f"{out.name}.partial")
    if args.fresh:
        file.unlink(missing_ok=True)
    about = {
        "largest": settings.largest,
        "seconds": settings.seconds,
        "seed": settings.seed,
        "machine": [d.model_dump(include={"name", "lanes", "description"}) for d in machine.devices],
    }
    with SampleLog(file, about) as log:
        if log.resumed:
            print(f"resuming an earlier run ({file}); --fresh starts anew", file=sys.stderr)
        yield log


def _check_flags(args: argparse.Namespace) -> None:
    """Raises ProfileError for invalid flags."""
    from polyrec.models.files import require_target_file
    from polyrec.models.runtimes.registry import runtime_names
    from polyrec.planner.profile import ProfileError

    if not args.bundles:
        raise ProfileError("give the folder of a bundle, or --list to see the devices")
    for path in args.bundles:
        if args.bundles.count(path) > 1:
            raise ProfileError(f"bundle '{path}' is named twice")
    if not 0 < args.seconds < 1e6:
        raise ProfileError(f"--seconds must be a time above 0, not {args.seconds:g}")
    if not 1 <= args.max_rows <= 1_000_000:
        raise ProfileError(f"--max-rows must be between 1 and 1000000, not {args.max_rows}")
    for flag, known in (("runtimes", runtime_names()), ("precisions", ("fp32", "bf16", "int8"))):
        for name in _split_names(getattr(args, flag)) or ():
            if name not in known:
                raise ProfileError(f"--{flag}: there is no '{name}'; known: {', '.join(known)}")
    require_target_file(args.out, ProfileError)


def _given_qualities(
    args: argparse.Namespace, labels: Mapping[str, str], bundles: Mapping[str, Bundle]
) -> dict[str, float]:
    """Returns the values of --quality, by label of a bundle or of one of its widths."""
    from polyrec.cli.plan.quality_argument import parse_quality
    from polyrec.models.bundle.manifest import with_width
    from polyrec.planner.profile import ProfileError

    labels_of_views = {
        with_width(path, view.width): with_width(labels[path], view.width)
        for path in args.bundles
        for view in bundles[labels[path]].by_width()
    }
    said = parse_quality(args.quality, "BUNDLE=VALUE", ProfileError, list(labels_of_views))
    return {labels_of_views[n]: v for n, v in said.items()}


def _without_losing_precisions(
    found: Sequence[Candidate], qualities: Mapping[str, PathQuality]
) -> tuple[list[Candidate], dict[str, PathQuality]]:
    from polyrec.measure.profile.quality import losing_precisions

    losing = losing_precisions(found, qualities)
    for name, why in losing.items():
        print(f"left out: path '{name}': {why}", file=sys.stderr)
    kept = [c for c in found if c.name not in losing]
    return kept, {c.name: qualities[c.name] for c in kept}


def _split_names(text: str | None) -> list[Any] | None:
    """Splits the names in a flag that `_check_flags` has checked."""
    return None if text is None else [part.strip() for part in text.split(",")]


def _save(profile: Profile, out: Path) -> None:
    from polyrec.planner.profile import ProfileError, save_profile

    try:
        save_profile(profile, out)
    except OSError as e:
        raise ProfileError(f"cannot write '{out}': {e.strerror}") from None


def _measure_paths(
    found: Sequence[Candidate], settings: ProfileSettings, log: SampleLog, folder: Path
) -> list[Candidate]:
    """Measures the paths and returns those that can be. Raises ProfileError if there are none."""
    from polyrec.measure.profile.measure import measure
    from polyrec.planner.profile import ProfileError

    with _bar() as advance:
        measured, skipped = measure(found, settings, log, advance, folder)
    for line in skipped:
        print(f"skipped: {line}", file=sys.stderr)
    if not measured:
        raise ProfileError(f"no path could be measured: {skipped[0]}")
    return measured


def _cpu_wait(found: Sequence[Candidate], settings: ProfileSettings, log: SampleLog) -> float | None:
    """Returns `cpu_wait_share`, with a warning if the machine was busy."""
    from polyrec.measure.profile.measure import cpu_wait_share
    from polyrec.planner.profile import BUSY

    share = cpu_wait_share(found, settings, log)
    if share is not None and share > BUSY:
        print(
            f"warning: this machine is busy: other work held the core for {share:.0%} of the "
            "measuring time, part of the latencies; use an idle machine, or as root chrt -r 1",
            file=sys.stderr,
        )
    return share


@contextmanager
def _bar() -> Iterator[Callable[[float, str], None]]:
    """Shows a progress bar; yields a function that advances it, given the share done and the current step."""
    from tqdm import tqdm

    with tqdm(
        total=1000,
        file=sys.stderr,
        mininterval=0.5,
        bar_format="{l_bar}{bar}| {elapsed}<{remaining}",
        disable=None,
    ) as bar:

        def advance(share: float, what: str) -> None:
            bar.set_description(f"{what:<28}", refresh=False)
            bar.update(round(1000 * share) - bar.n)

        yield advance


def _cut_times(
    found: Sequence[Candidate], settings: ProfileSettings, log: SampleLog, folder: Path
) -> tuple[CutTimes, ...]:
    from polyrec.measure.profile.cuts import measurable, measure_cuts
    from polyrec.measure.profile.process import MeasureError

    chosen = measurable(found)
    if not chosen:
        print("no tiers are measured: no path on the CPU stores enough rows", file=sys.stderr)
    times = []
    with _bar() as advance:
        for i, candidate in enumerate(chosen):

            def within(share: float, what: str, before: int = i) -> None:
                advance((before + share) / len(chosen), what)

            try:
                times.append(measure_cuts(candidate, settings, log, within, folder))
            except MeasureError as e:
                print(f"tiers are not measured: {e}", file=sys.stderr)
    return tuple(times)


def _qualities(
    args: argparse.Namespace,
    found: Sequence[Candidate],
    bundles: Mapping[str, Bundle],
    given: Mapping[str, float],
    log: SampleLog,
    splitter: Splitter | None = None,
) -> dict[str, PathQuality]:
    from polyrec.cli.progress import ProgressBars
    from polyrec.measure.profile.quality import bundle_quality, measure_quality

    if args.data is None:
        return {c.name: bundle_quality(c, bundles, given, args.metric) for c in found}
    with ProgressBars() as bars:
        return measure_quality(found, args.data, log, bars.phase, args.metric, splitter)


def _warn_of_few_positives(qualities: Mapping[str, PathQuality]) -> None:
    """Warns if a constant prediction has nearly the accuracy of the paths."""
    metrics = next(iter(qualities.values())).metrics
    rate = metrics.get("positives", 0.0) / metrics.get("rows", 1.0)
    if 0 < rate < MIN_RATE:
        print(
            f"warning: {rate:.1%} of the test rows are positive, so predicting none of them has an "
            f"accuracy of {1 - rate:.1%}: accuracy hardly distinguishes paths; --metric information does",
            file=sys.stderr,
        )


def _outside_lanes(profile: Profile, found: Sequence[Candidate], seed: int) -> dict[str, Any]:
    """Measures `front` and `hops` of a profile with its fastest path on the CPU, as both hardly depend on the
    path.

    found: the profile's paths, in its order.
    """
    speed = {
        c.name: p.latency.median(FRONT_ROWS)
        for c, p in zip(found, profile.paths, strict=True)
        if p.path.device == "cpu"
    }
    if not speed:
        print("the server's front is not measured: no path runs on the CPU", file=sys.stderr)
        return {}
    candidate = min((c for c in found if c.name in speed), key=lambda c: speed[c.name])
    path = candidate.path.model_copy(update={"bundle": candidate.bundle.path})
    return {"front": _front(path, candidate.bundle, seed), "hops": _hops(path, candidate.bundle, seed)}


def _front(path: PlannedPath, bundle: Bundle, seed: int) -> Front | None:
    from polyrec.loadtest.drivers.connection import LoadError
    from polyrec.measure.front import measure_front
    from polyrec.server.child import StartFailed

    print(f"measuring the server's front with {path.name} ...", file=sys.stderr)
    try:
        return measure_front(path, bundle, FRONT_SECONDS, seed)
    except (StartFailed, LoadError) as e:
        print(f"the server's front is not measured: {e}", file=sys.stderr)
        return None


def _hops(path: PlannedPath, bundle: Bundle, seed: int) -> dict[LaneKind, Hop]:
    from polyrec.measure.lane_hop import measure_hops
    from polyrec.models.errors import PolyrecError
    from polyrec.server.lanes.lane import LaneDied

    print("measuring the hop to a lane on another core ...", file=sys.stderr)
    try:
        return measure_hops(path, bundle, HOP_SECONDS, seed)
    except (PolyrecError, LaneDied) as e:
        print(f"the hop to another core's lane is not measured: {e}", file=sys.stderr)
        return {}


def _versions() -> str:
    """Returns the versions of software that invalidate old samples when they change."""
    import numpy as np

    from polyrec.models.runtimes.registry import runtime_kind, runtimes_for

    used = (runtime_kind(name).library for name in runtimes_for("cpu"))
    return " ".join((*used, f"numpy {np.__version__}"))
