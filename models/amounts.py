"""Formats bytes, rates, times and shares, the same way in every line that Polyrec prints."""

from __future__ import annotations

from typing import Literal


def size(count: float, base: Literal[1000, 1024] = 1000) -> str:
    """Formats bytes in powers of `base` with three digits: `13.9 MB`, `32 MiB`."""
    units = ("B", "kB", "MB", "GB", "TB") if base == 1000 else ("B", "KiB", "MiB", "GiB", "TiB")
    power = 0
    while abs(count) >= base - 0.5 and power < len(units) - 1:
        count, power = count / base, power + 1
    unit = units[power]
    return f"{count:.0f} {unit}" if abs(count) >= 100 else f"{count:.3g} {unit}"


def rate(per_s: float) -> str:
    """Formats a number per second with three digits, written in full: `92,300`."""
    if abs(per_s) >= 1000:
        digits = max(len(str(int(abs(per_s)))) - 4, 0)
        return f"{round(per_s, -digits):,.0f}"
    return f"{per_s:.3g}"


def percent(share: float) -> str:
    """Formats a share as a percentage that is never rounded to 0% or 100%: `99.98%`."""
    if not 1e-6 < share < 1 - 1e-6:
        return f"{share:.0%}"
    decimals = next(n for n in range(1, 6) if 0 < float(f"{100 * share:.{n}f}") < 100)
    return f"{100 * share:.{decimals}f}%"


def ms(seconds: float) -> str:
    """Formats milliseconds with three digits: `8.75 ms`."""
    return f"{1e3 * seconds:.3g} ms"
