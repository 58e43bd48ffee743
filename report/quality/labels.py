"""Places the labels of points in a chart so that none overlap.

Given points, label sizes and obstacles in pixels, `place` returns the lower left corner of each label. Labels
are placed one by one, those with the closest neighbors first, each at the free position nearest to its point.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polyrec.models.schema.batch import F64

Frame = tuple[float, float, float, float]

STEP = 6.0
"""Pixels between places that are tried."""
CROSSING = 80.0
"""Pixels that a label goes farther from its point rather than cross a line."""
AMBIGUOUS = 60.0
"""Extra pixels that a label may move away so that it is not as close to another point as to its own."""


def place(anchors: F64, sizes: F64, obstacles: F64, lines: F64, frame: Frame, gap: float) -> F64:
    """Returns the lower left corners of labels, float64 [n, 2].

    anchors: [n, 2]. sizes: [n, 2], width and height of each text.
    obstacles: [m, 4], boxes (x0, y0, x1, y1) that no label may touch. lines: [k, 4], boxes to avoid if
    possible.
    frame: the box that labels stay in. gap: between a point and a label beside it.
    A label without a free position is placed beside its point, over whatever is there.
    """
    n = anchors.shape[0]
    out = np.empty((n, 2))
    occupied = [obstacles.reshape(-1, 4)]
    spacing = np.hypot(*(anchors[:, None] - anchors).transpose(2, 0, 1)) + np.diag(np.full(n, np.inf))
    for i in np.argsort(spacing.min(axis=1, initial=np.inf), kind="stable"):
        corners = _places(anchors[i], sizes[i], frame, gap)
        boxes = np.concatenate((corners, corners + sizes[i]), axis=1)
        distances = np.stack([_distance(boxes, anchor) for anchor in anchors])
        nearest, others = distances[i], np.delete(distances, i, axis=0)
        cost = nearest + CROSSING * touching(boxes, lines.reshape(-1, 4)).any(axis=1)
        cost += AMBIGUOUS * (others.min(axis=0, initial=np.inf) < 1.5 * nearest)
        cost[touching(boxes, np.concatenate(occupied)).any(axis=1)] = np.inf
        chosen = int(np.argmin(cost)) if np.isfinite(cost).any() else 0
        out[i] = corners[chosen]
        occupied.append(boxes[chosen : chosen + 1])
    return out


def _places(anchor: F64, size: F64, frame: Frame, gap: float) -> F64:
    """Returns candidate corners inside the frame: right, left, above and below first, then everywhere."""
    width, height = size
    x, y = anchor
    beside = np.array(
        [
            (x + gap, y - height / 2),
            (x - gap - width, y - height / 2),
            (x - width / 2, y + gap),
            (x - width / 2, y - gap - height),
        ]
    )
    x0, y0, x1, y1 = frame
    grid_x = np.arange(x0, max(x1 - width, x0) + 1, STEP)
    grid_y = np.arange(y0, max(y1 - height, y0) + 1, STEP)
    grid = np.stack(np.meshgrid(grid_x, grid_y), axis=-1).reshape(-1, 2)
    far = _distance(np.concatenate((grid, grid + size), axis=1), anchor) >= gap
    corners = np.concatenate((beside, grid[far]))
    inside = (corners >= (x0, y0)).all(axis=1) & (corners + size <= (x1, y1)).all(axis=1)
    return corners[inside] if inside.any() else corners


def _distance(boxes: F64, point: F64) -> F64:
    """Returns the distance of a point from each box, float64 [n]."""
    return np.asarray(np.hypot(*(np.clip(point, boxes[:, :2], boxes[:, 2:]) - point).T))


def touching(a: F64, b: F64) -> NDArray[np.bool_]:
    """Returns which pairs of boxes overlap, bool [len(a), len(b)]."""
    apart = (a[:, None, :2] >= b[None, :, 2:]) | (a[:, None, 2:] <= b[None, :, :2])
    return np.logical_not(apart.any(axis=2))


def spread_apart(x: F64, apart: float) -> F64:
    """Moves positions at least `apart` from each other, as little as possible, preserving their order.

    x: float64 [n]; equal positions keep the given order. Solves least squares under an order by pooling
    adjacent violators (Barlow et al., 1972).
    """
    order = np.argsort(x, kind="stable")
    shifted = x[order] - apart * np.arange(x.size)
    blocks: list[tuple[float, int]] = []
    for value in shifted:
        mean, count = float(value), 1
        while blocks and blocks[-1][0] > mean:
            before, n = blocks.pop()
            mean, count = (before * n + mean * count) / (n + count), n + count
        blocks.append((mean, count))
    out = np.empty(x.size)
    out[order] = np.repeat([m for m, _ in blocks], [c for _, c in blocks]) + apart * np.arange(x.size)
    return out
