"""Formats profiles and machines as lines of text for a terminal."""

from __future__ import annotations

from polyrec.models.amounts import size
from polyrec.models.text_table import aligned
from polyrec.planner.devices import Device, Machine
from polyrec.planner.profile import PathProfile, Profile
from polyrec.planner.quality import quality_groups
from polyrec.planner.tier_times import TIMES, CutTimes

SHOWN_ROWS = (1, 23, 270, 4096)


def machine_lines(machine: Machine) -> list[str]:
    """Describes the devices with their lanes, memory, speeds and caches."""
    lines = [f"machine {machine.name}"]
    for device in machine.devices:
        lines += _device(device)
    disk = [size(machine.disk_bytes) + " free"] if machine.disk_bytes is not None else []
    if machine.disk_bandwidth is not None and machine.disk_latency_s is not None:
        disk += [f"{size(machine.disk_bandwidth)}/s", f"{machine.disk_latency_s * 1e6:.0f} us a page"]
    if disk:
        lines.append(f"  {'disk':<10} " + ", ".join(disk))
    if remote := machine.remote:
        place = remote.store.url.rpartition("@")[2]
        speeds = f"{size(remote.bandwidth)}/s, {remote.latency_s * 1e6:.0f} us a request"
        lines.append(f"  {'remote':<10} {place}; {speeds}")
    return lines


def _device(device: Device) -> list[str]:
    several = f"{device.lanes} lanes" if device.lanes > 1 else "1 lane"
    lines = [f"  {device.name:<10} {device.description}; {several}, {size(device.memory_bytes)}"]
    speeds = [
        f"{name} {size(value)}/s"
        for name, value in (("memory", device.bandwidth), ("from the host", device.link))
        if value is not None
    ]
    speeds += [f"from {name} {size(value)}/s" for name, value in device.peers.items()]
    if device.gathers is not None:
        speeds.append(f"{device.gathers / 1e6:.0f} M random rows/s a lane")
    if device.flops is not None:
        speeds.append(f"{device.flops / 1e9:,.0f} GFLOP/s a lane")
    has = [f"{level} {size(cache, 1024)}" for level, cache in device.caches.items()]
    if device.numa > 1:
        has.append(f"{device.numa} NUMA nodes")
    has += device.vector
    for title, parts in (("", speeds), ("", has), ("executes with ", device.runtimes)):
        if parts:
            lines.append(f"  {'':<10} {title}" + ", ".join(parts))
    return lines


def profile_lines(profile: Profile) -> list[str]:
    """Describes the machine, a table of the paths, and notes on its figures."""
    made = machine_lines(profile.machine)
    largest = max(p.latency.rows[-1] for p in profile.paths)
    rows = [r for r in SHOWN_ROWS if r <= largest]
    heads = [f"{r} row{'' if r == 1 else 's'}" for r in rows]
    table = [["path", "quality", "memory", "start", *heads]]
    for path in profile.paths:
        cells = [f"{_ms(path.latency.median(r))} / {_ms(path.latency.tail(r))}" for r in rows]
        star = "*" if path.quality_from in ("assumed", "given") else ""
        table.append(
            [
                path.path.name,
                f"{path.quality:.5f}{star}",
                size(path.memory.total),
                f"{path.startup_s:.2f} s",
                *cells,
            ]
        )
    made += ["", "median / 99th percentile of one batch, ms", *aligned(table)]
    made += [f"* {note}" for note in dict.fromkeys(p.note for p in profile.paths if p.note)]
    made += quality_lines(profile)
    made += _errors(profile.paths)
    if profile.front is not None:
        made.append(
            f"front: {profile.front.query_s * 1e6:.0f} us a query and "
            f"{profile.front.row_s * 1e6:.2f} us a row beside the lane"
        )
    made += [_tiers(times) for times in profile.cut_times]
    return made


def _tiers(times: CutTimes) -> str:
    cost = times.cost
    error = "" if times.error is None else f"; median error at cuts left out {times.error:.0%}"
    us = {name: f"{1e6 * getattr(cost, name):.3g}" for name in TIMES}
    return (
        f"rows on disk ({times.path}, {times.reader}, {size(times.page_bytes)} a read), us a batch + each: "
        f"lookups {us['batch_s']} + {us['lookup_s']}, beyond the prefix {us['below_batch_s']} + "
        f"{us['below_s']}, reads {us['wait_s']} + {us['read_s']}, if ahead {us['ahead_batch_s']} + "
        f"{us['ahead_s']}{error}"
    )


def quality_lines(profile: Profile) -> list[str]:
    """Describes the metric, and the groups of paths that differ in it, best first."""
    groups = quality_groups({p.path.name: p.quality for p in profile.paths}, profile.differences)
    meaning = " gain, 1 - NE" if profile.metric == "information" else ""
    lines = [f"quality: {profile.metric}{meaning}, on test rows; differences that were shown, best first:"]
    return lines + [f"  {' = '.join(group)}" for group in groups]


def _errors(paths: tuple[PathProfile, ...]) -> list[str]:
    known = [p for p in paths if p.error is not None]
    if not known:
        return []
    median = max((p.error.median, p.path.name) for p in known if p.error)
    tail = max((p.error.tail, p.path.name) for p in known if p.error)
    return [
        "error of the latency models at sizes they were not fitted to, mean over the sizes: "
        f"median at most {median[0]:.1%} ({median[1]}), 99th percentile at most {tail[0]:.1%} ({tail[1]})"
    ]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}"
