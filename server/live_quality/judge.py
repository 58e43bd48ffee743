"""Scores sampled requests of a prediction log on every path, and reports the paths' quality.

server/live_quality/rounds.py runs it in a process of its own, and makes it rest after each piece of work.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from polyrec.models.bundle.bundle import Bundle, load_bundle
from polyrec.models.data.prediction_log.labels import POSITIVE
from polyrec.models.errors import PolyrecError
from polyrec.models.evaluation.live import LiveEstimate, LiveModel, ScoredRequest, estimate
from polyrec.models.runtimes import open_runtime
from polyrec.models.runtimes.runtime import Runtime
from polyrec.models.schema.batch import F32
from polyrec.models.schema.encoder import Encoder
from polyrec.server.codecs.json_rows import JsonDecoder
from polyrec.server.errors import RequestError
from polyrec.server.live_quality.labels import ALWAYS, NEVER, OPERATOR
from polyrec.server.live_quality.report import (
    CanaryReport,
    PathReport,
    Report,
    ends,
)
from polyrec.server.live_quality.sample import LoggedRequest, LogSampler
from polyrec.server.live_quality.settings import (
    REQUESTS,
    ROUND_REQUESTS,
    WINDOW_ROWS,
    JudgedPath,
    JudgeSettings,
)
from polyrec.server.prediction_log.writer import LIMITS

DIFFERING = 1e-3
"""Difference of probabilities above which a path's score counts as different from its logged answer."""
LATE_SHARE = 0.1
Rest = Callable[[float], None]
"""Sleeps after a piece of work; gets the seconds that the work took."""


class Judge:
    """Scores the sliding window of one plan. rest: called after each piece of work. Raises PolyrecError."""

    def __init__(self, settings: JudgeSettings, rest: Rest) -> None:
        self._settings = settings
        self._rest = rest
        bundles: dict[Path, Bundle] = {}
        self._models = [_open(path, bundles) for path in settings.paths]
        self._canary = None if settings.canary is None else _open(settings.canary.path, bundles)
        schema = self._models[0][0].schema
        self._decoder = JsonDecoder(schema, LIMITS)
        self._sampler = LogSampler(
            settings.folder, schema, settings.span_s, settings.settle_s, ROUND_REQUESTS
        )
        self._window: deque[ScoredRequest] = deque()
        self._disputed = self._invalid = self._differing = 0
        self._timed_positives = self._late = 0

    def round(self, now_s: float) -> Report:
        """Scores newly sampled requests, and estimates the window's quality. Raises PolyrecError."""
        begun_s = time.monotonic()
        sampled = self._sampler.sample(now_s)
        self._rest(time.monotonic() - begun_s)
        for request in sampled:
            begun_s = time.monotonic()
            scored = self._scored(request)
            if scored is not None:
                self._window.append(scored)
            self._rest(time.monotonic() - begun_s)
        oldest_s = self._sampler.oldest_s(now_s)
        # those of the future were answered before the clock was set back, and would stay the newest
        kept = sorted((r for r in self._window if oldest_s <= r.at_s <= now_s), key=lambda r: r.at_s)
        self._window = deque(latest(kept, REQUESTS, WINDOW_ROWS))
        begun_s = time.monotonic()
        names = [path.name for path in self._settings.paths]
        reference = names.index(self._settings.reference)
        trusted = (*self._settings.trusted, OPERATOR)
        found = estimate(self._window, reference, trusted)
        report = self._report(found, now_s)
        if self._settings.canary is not None:
            report = report.model_copy(update={"trial": self._judged_canary(reference, trusted)})
        self._rest(time.monotonic() - begun_s)
        return report

    def _judged_canary(self, reference: int, trusted: Sequence[str]) -> CanaryReport:
        """Compares the canary with the reference path, on requests newer than its bundle."""
        canary = self._settings.canary
        assert canary is not None
        counting = [r for r in self._window if r.at_s >= canary.since_s]
        pairs = [replace(r, scores=r.scores[[reference, -1]]) for r in counting]
        found = estimate(pairs, 0, trusted)
        about = CanaryReport(version=canary.path.version, requests=0, positives=0)
        if found is None:
            return about
        model = found.models[1]
        return about.model_copy(
            update={
                "requests": found.requests,
                "positives": found.positives,
                "difference": ends(model.difference),
                "confirmed": ends(model.confirmed),
            }
        )

    def _scored(self, request: LoggedRequest) -> ScoredRequest | None:
        """Scores a request on every path; adds the logged scores. None if the request is omitted."""
        labels = request.labels
        if len(labels.clients) > 1:
            self._disputed += 1
            return None
        try:
            rows = (
                self._decoder.rank(request.body).rows
                if request.ranking
                else self._decoder.predict(request.body)
            )
            models = [*self._models, *([] if self._canary is None else [self._canary])]
            batches = {id(encoder): rows.encode(encoder) for encoder, _ in models}
            scores = [model.predict(batches[id(encoder)]).copy() for encoder, model in models]
            scores, canary = scores[: len(self._models)], scores[len(self._models) :]
            # a damaged file may have another number of scores than rows
            every = np.stack([*scores, request.served, *canary])
        except (RequestError, PolyrecError, ValueError):
            self._invalid += 1
            return None
        self._compare(request, scores)
        positive = (labels.values > POSITIVE) & (labels.given_us != NEVER)
        late_us = labels.at_us + 1e6 * (1 - LATE_SHARE) * self._sampler.window_s
        timed = positive & (labels.given_us != ALWAYS)
        self._timed_positives += int(timed.sum())
        self._late += int((timed & (labels.given_us > late_us)).sum())
        client = next(iter(labels.clients), None)
        return ScoredRequest(labels.at_us / 1e6, client, labels.binary, every)

    def _compare(self, request: LoggedRequest, scores: list[F32]) -> None:
        """Counts the request as differing if the path that answered it now gives other scores."""
        for path, found in zip(self._settings.paths, scores, strict=True):
            if (path.name, path.version) == (request.path, request.version):
                self._differing += not np.allclose(found, request.served, atol=DIFFERING, equal_nan=True)

    def _report(self, found: LiveEstimate | None, now_s: float) -> Report:
        about = Report(
            at_s=now_s,
            final_after_s=self._sampler.final_after_s,
            disputed=self._disputed + self._sampler.repeated,
            invalid=self._invalid,
            differing=self._differing,
            late_positives=self._late / self._timed_positives if self._timed_positives else None,
            reference=self._settings.reference,
        )
        if found is None:
            return about
        paths = self._settings.paths
        models, served = found.models[: len(paths)], found.models[len(paths)]
        return about.model_copy(
            update={
                "since_s": self._window[0].at_s,
                "until_s": self._window[-1].at_s,
                "labeled_s": max((r.at_s for r in self._window if r.client is not None), default=None),
                "requests": found.requests,
                "rows": found.rows,
                "positives": found.positives,
                "clients": dict(found.clients),
                "paths": {p.name: _described(m, p.version) for p, m in zip(paths, models, strict=True)},
                "served": _described(served, ""),
            }
        )


def _open(path: JudgedPath, bundles: dict[Path, Bundle]) -> tuple[Encoder, Runtime]:
    """Opens a path on the CPU. bundles: cache of opened bundles. Raises PolyrecError."""
    if path.bundle not in bundles:
        bundles[path.bundle] = load_bundle(path.bundle)
    if bundles[path.bundle].manifest.version != path.version:
        raise PolyrecError(f"bundle '{path.bundle}' was replaced since the server loaded it")
    bundle = bundles[path.bundle].at_width(path.width)
    return bundle.encoder, open_runtime(path.runtime, bundle, "cpu", path.precision)


def _described(model: LiveModel, version: str) -> PathReport:
    return PathReport(
        version=version,
        information=ends(model.information),
        calibration=ends(model.calibration),
        auc=ends(model.auc),
        difference=ends(model.difference),
        confirmed=ends(model.confirmed),
    )


def latest(scored: Sequence[ScoredRequest], requests: int, rows: int) -> Sequence[ScoredRequest]:
    """Returns the last requests: at most `requests` of them, with at most `rows` rows in total."""
    newest = scored[::-1][:requests]
    fitting = int(np.searchsorted(np.cumsum([r.labels.size for r in newest]), rows, "right"))
    return newest[:fitting][::-1]
