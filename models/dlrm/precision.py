"""Precisions: of the rows a bundle stores, and of the products of a dense net that a runtime executes."""

from __future__ import annotations

from typing import Literal

Precision = Literal["fp32", "bf16", "int8", "int4"]
DensePrecision = Literal["fp32", "bf16", "int8"]
