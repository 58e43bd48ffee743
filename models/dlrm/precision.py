"""Precisions of stored rows, and of the matrix products of a dense net."""

from __future__ import annotations

from typing import Literal

Precision = Literal["fp32", "bf16", "int8", "int4"]
DensePrecision = Literal["fp32", "bf16", "int8"]
