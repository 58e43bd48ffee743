"""Exit statuses of `polyrec load` besides those of all commands (0, 2, 130)."""

from __future__ import annotations

DRIVER_TOO_SLOW = 3
"""The driver itself was late, so that the figures are unreliable; no report is written."""
SLO_MISSED = 4
"""Fewer requests than --slo-share were answered in time."""
NOTHING_SERVED = 5
"""Every request failed for another reason than load (429, 504)."""
