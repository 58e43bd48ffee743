"""Amounts in words: bytes, rates, times, shares, the same in every line that the planner prints."""

from __future__ import annotations


def size(count: float) -> str:
    """Bytes in powers of 1,000: `13.9 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def rate(per_s: float) -> str:
    """A number a second, three digits, in full: `92,300`."""
    if abs(per_s) >= 1000:
        digits = max(len(str(int(abs(per_s)))) - 4, 0)
        return f"{round(per_s, -digits):,.0f}"
    return f"{per_s:.3g}"


def percent(share: float) -> str:
    """A share that is not rounded up to all or down to nothing: `99.98%`."""
    if not 1e-6 < share < 1 - 1e-6:
        return f"{share:.0%}"
    decimals = next(n for n in range(1, 6) if 0 < float(f"{100 * share:.{n}f}") < 100)
    return f"{100 * share:.{decimals}f}%"


def ms(seconds: float) -> str:
    """Milliseconds, three digits: `8.75 ms`."""
    return f"{1e3 * seconds:.3g} ms"
