"""Reads answers of the inference protocol as a client does."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np

from polyrec.loadtest.traffic.request_bodies import HEADER_BYTES
from polyrec.models.schema.batch import F32


def probabilities(body: bytes, headers: Mapping[str, str]) -> F32:
    """Returns the probabilities of an answer, JSON or binary. headers: names in any case."""
    by_name = {name.lower(): value for name, value in headers.items()}
    end = int(by_name.get(HEADER_BYTES.lower(), len(body)))
    (output,) = json.loads(body[:end])["outputs"]
    return np.array(output["data"], np.float32) if "data" in output else np.frombuffer(body[end:], "<f4")
