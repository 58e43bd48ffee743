"""Determines the quality of each path: measured on held-out rows, or from the metrics in the bundles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from polyrec.measure.profile.candidates import Candidate
from polyrec.measure.profile.log import SampleLog
from polyrec.models.bundle.bundle import Bundle
from polyrec.models.bundle.manifest import NET
from polyrec.models.data.split import NAMES
from polyrec.models.evaluation.metrics import evaluate
from polyrec.models.evaluation.predictions import predict_all
from polyrec.models.training.pipeline import Phase
from polyrec.planner.profile import ProfileError

TEST = (NAMES.index("test"),)


@dataclass(frozen=True, slots=True)
class Accuracy:
    """A path's accuracy and quality, and their origin.

    origin: `bundle`, test metrics of its bundle; `data`, measured on held-out rows with this path; or
    `assumed`, metrics of another bundle or precision, explained by `note`.
    """

    accuracy: float
    quality: dict[str, float]
    origin: Literal["bundle", "data", "assumed"]
    note: str = ""


NONE_GIVEN: Mapping[str, float] = {}


def bundle_accuracy(
    candidate: Candidate, bundles: Mapping[str, Bundle], given: Mapping[str, float] = NONE_GIVEN
) -> Accuracy:
    """Returns the accuracy from metrics in the bundles, or given by the user by bundle label.

    A derived bundle (materialized, quantized) has no metrics; those of a bundle with the same dense net are
    used, as those of fp32 are used for another dense precision. The note says so. Raises ProfileError if
    neither it nor a bundle with its net has metrics.
    """
    bundle, precision = candidate.bundle, candidate.path.precision
    source, notes = bundle, []
    for label, labeled in bundles.items():
        if labeled.files is bundle.files and label in given:
            return Accuracy(given[label], {}, "assumed", f"accuracy of '{label}' as it was given")
    if _accuracy(bundle) is None:
        net = bundle.manifest.files[NET].sha256
        like = [n for n, b in bundles.items() if b.manifest.files[NET].sha256 == net and _accuracy(b)]
        if not like:
            raise ProfileError(
                f"bundle '{bundle.path}' has no test accuracy, nor has one with its dense net: "
                "measure it with --data FILE, or say it with --accuracy BUNDLE=SHARE"
            )
        source = bundles[like[0]].at_width(bundle.width)
        notes.append(f"accuracy of '{like[0]}', which has the same dense net, assumed equal")
    if precision != "fp32":
        notes.append(f"accuracy of {precision} dense assumed equal to that of fp32")
    quality = {k: float(v) for k, v in source.test_metrics.items() if v is not None and np.isfinite(v)}
    accuracy = _accuracy(source)
    assert accuracy is not None
    return Accuracy(accuracy, quality, "assumed" if notes else "bundle", "; ".join(notes))


def measure_accuracy(
    found: Sequence[Candidate], bundles: Mapping[str, Bundle], data: str, log: SampleLog, phase: Phase
) -> dict[str, Accuracy]:
    """Measures each path on the test rows of a file, by name; results in the log are reused.

    Raises DataError if the data do not fit the bundles.
    """
    file = Path(data)
    stamp = file.stat().st_mtime_ns if file.is_file() else 0
    what = f"quality on {data} {stamp}"
    absent = [c for c in found if log.get(c.name, c.identity, what) is None]
    for runtime, device, precision in dict.fromkeys(
        (c.path.runtime, c.path.device, c.path.precision) for c in absent
    ):
        same_runtime = {
            c.name: c
            for c in absent
            if (c.path.runtime, c.path.device, c.path.precision) == (runtime, device, precision)
        }
        made = predict_all(
            {n: c.bundle for n, c in same_runtime.items()},
            data,
            TEST,
            runtime,
            device,
            precision,
            phase=phase,
        )
        for name, probabilities in made.probabilities.items():
            figures = evaluate(probabilities, made.label, made.group).as_dict()
            quality = {k: float(v) for k, v in figures.items() if v is not None}
            log.add(name, same_runtime[name].identity, what, quality)
    known = {c.name: log.get(c.name, c.identity, what) for c in found}
    return {
        name: Accuracy(quality["accuracy"], quality, "data") for name, quality in known.items() if quality
    }


def _accuracy(bundle: Bundle) -> float | None:
    found = bundle.test_metrics.get("accuracy")
    return None if found is None else float(found)
