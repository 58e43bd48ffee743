"""Implements the click model of synthetic data: draws users, shown hotels, and click probabilities.

Users, cities and hotels are drawn with Zipf skew. The log-odds of a click are a sum of the quality of the
hotel, taste (a dot product of latent vectors: user's platform and user, filters; class of hotel and hotel),
the price relative to the other candidates (weighted by device), the position, and whether the user has
interacted with the hotel before.

Most of the signal is learnable from a small data set: numbers, positions, frequent hotels and platforms. The
rest is specific to single users and rare hotels and mostly stays unlearned, as in real data.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from polyrec.models.schema.batch import F64, I64

CANDIDATES = 25
CITY_ITEMS = 50
HISTORY = 10
PLATFORMS = 40
CLASSES = 8
LATENT = 16
CLICK_RATE = 0.05
START_S = 1_700_000_000
STEP_S = 30

DEVICES = ("desktop", "mobile", "tablet")
PRICE_EFFECT = np.array([-2.4, -3.6, -1.5])
SEEN_EFFECT = np.array([0.0, 1.0, 2.1])
POSITION_EFFECT = -1.2
QUALITY = 0.5
TASTE = 0.7
FILTERS = (
    *("wifi", "spa", "pool", "parking", "breakfast", "pets", "gym", "bar", "beach", "sauna", "family"),
    *("hostel", "resort", "motel", "airport", "center", "balcony", "kitchen", "golf", "casino"),
    *("one star", "three stars", "four stars", "five stars"),
)
FILTER_COUNT = np.array([0.4, 0.25, 0.15, 0.1, 0.1])
HISTORY_COUNT = np.array([0.3, 0.2, 0.14, 0.1, 0.08, 0.05, 0.04, 0.03, 0.02, 0.02, 0.02])


@dataclass(frozen=True, slots=True)
class _Context:
    """The shared part of several requests; arrays are [requests, ...]."""

    user: I64
    city: I64
    filters: I64  # [requests, most], in order; the first filter_count of each hold
    filter_count: I64
    taste: F64  # [requests, CITY_ITEMS], of this request for each hotel of its city
    history: I64  # [requests, HISTORY], places in the city; the first history_count of each hold
    history_count: I64


class World:
    """Parameters that are the same for all requests, drawn once."""

    def __init__(
        self, random: np.random.Generator, cities: int, users: int, candidates: int = CANDIDATES
    ) -> None:
        items = cities * CITY_ITEMS
        self._candidates = candidates
        self._city_weight = _zipf(cities, 0.9)
        self._user_weight = _zipf(users, 0.7)
        self._item_weight = np.log(_zipf(CITY_ITEMS, 1.0))
        self._platform = random.choice(PLATFORMS, users, p=_zipf(PLATFORMS, 1.0))
        self._device = random.choice(len(DEVICES), users, p=[0.5, 0.4, 0.1])
        platform = random.normal(size=(PLATFORMS, LATENT))
        self._user_vector = platform[self._platform] + 0.4 * random.normal(size=(users, LATENT))
        kind = random.normal(size=(CLASSES, LATENT))
        self._item_vector = kind[random.integers(CLASSES, size=items)]
        self._item_vector = self._item_vector + 0.3 * random.normal(size=(items, LATENT))
        self._filter_vector = random.normal(size=(len(FILTERS), LATENT))
        self._filter_weight = np.log(_zipf(len(FILTERS), 0.8))
        self._quality = QUALITY * random.normal(size=items)
        level = np.repeat(random.normal(4.4, 0.3, size=cities), CITY_ITEMS)
        self._log_price = level + 0.4 * random.normal(size=items)
        self._user_names = pa.array([f"u{i}" for i in random.permutation(users)])
        self._city_names = pa.array([f"city-{i}" for i in random.permutation(cities)])
        self._item_names = pa.array([str(100_000 + i) for i in random.permutation(items)])
        self._platform_names = pa.array([f"P{i:02}" for i in range(PLATFORMS)])
        self._bias: float | None = None
        self._first_tastes = self._user_vector, self._quality
        self._last_tastes: tuple[F64, F64] | None = None

    def shift_tastes(self, random: np.random.Generator, turn: float) -> None:
        """Shifts users' tastes and hotels' qualities from the initial ones toward others, drawn once.

        turn: share of the way; at 1 the initial ones have no influence. The spread stays constant.
        """
        users, quality = self._first_tastes
        if self._last_tastes is None:
            platform = random.normal(size=(PLATFORMS, LATENT))
            vectors = platform[self._platform] + 0.4 * random.normal(size=users.shape)
            self._last_tastes = vectors, QUALITY * random.normal(size=quality.size)
        keep, come = np.cos(turn * np.pi / 2), np.sin(turn * np.pi / 2)
        self._user_vector = keep * users + come * self._last_tastes[0]
        self._quality = keep * quality + come * self._last_tastes[1]

    def requests(self, random: np.random.Generator, first: int, lengths: I64, drift: float) -> pa.Table:
        """Draws the next requests, as rows with clicks.

        first: id of the first. lengths: int64 [requests], candidates of each, at most the model's.
        drift: fraction of a full rotation of the popularity within cities.
        """
        turned = np.roll(self._item_weight, int(drift * CITY_ITEMS))
        context = self._contexts(random, lengths.size, turned)
        base = context.city[:, None] * CITY_ITEMS
        quality = self._quality[base + np.arange(CITY_ITEMS)]
        shown = _draw(random, turned + 0.5 * quality, self._candidates)
        there = np.arange(self._candidates) < lengths[:, None]
        price = np.exp(self._log_price[base + shown] + 0.15 * random.normal(size=shown.shape))
        price_rank = _ranks(np.where(there, price, np.inf)) / lengths[:, None]
        seen = self._seen(context, shown)
        position = np.broadcast_to(np.arange(self._candidates), shown.shape)
        logits = (
            np.take_along_axis(quality + TASTE * context.taste, shown, 1)
            + PRICE_EFFECT[self._device[context.user]][:, None] * (price_rank - 0.5)
            + POSITION_EFFECT * np.log1p(position)
            + SEEN_EFFECT[seen]
        )[there]
        if self._bias is None:
            self._bias = _bias(logits)
        planted = 1 / (1 + np.exp(-(logits + self._bias)))
        request = pa.array(np.repeat(np.arange(lengths.size), lengths))
        columns = {name: column.take(request) for name, column in self._columns(first, context).items()}
        return pa.table(
            columns
            | {
                "item": self._item_names.take(pa.array((base + shown)[there])),
                "position": position[there],
                "price": np.maximum(np.round(price[there]), 1.0),
                "price_rank": price_rank[there],
                "seen": seen[there],
                "clicked": (random.random(planted.size) < planted).astype(np.int64),
                "planted": planted,
            }
        )

    def _contexts(self, random: np.random.Generator, requests: int, item_weight: F64) -> _Context:
        user = random.choice(self._user_weight.size, requests, p=self._user_weight)
        city = random.choice(self._city_weight.size, requests, p=self._city_weight)
        filter_count = random.choice(FILTER_COUNT.size, requests, p=FILTER_COUNT)
        filters = _draw(random, np.tile(self._filter_weight, (requests, 1)), FILTER_COUNT.size - 1)
        held = np.arange(filters.shape[1]) < filter_count[:, None]
        wish = (self._filter_vector[filters] * held[:, :, None]).sum(1)
        want = self._user_vector[user] + 0.7 * wish / np.maximum(filter_count, 1)[:, None]
        vectors = self._item_vector[city[:, None] * CITY_ITEMS + np.arange(CITY_ITEMS)]
        taste = np.einsum("rl,ril->ri", want, vectors)
        history = _draw(random, item_weight + 0.5 * taste, HISTORY)
        history_count = random.choice(HISTORY_COUNT.size, requests, p=HISTORY_COUNT)
        return _Context(user, city, filters, filter_count, taste, history, history_count)

    def _seen(self, context: _Context, shown: I64) -> I64:
        """Returns int64 like `shown`: 0 never interacted with, 1 before, 2 the last one interacted with."""
        held = np.arange(HISTORY) < context.history_count[:, None]
        row, place = np.nonzero(held)
        seen = np.zeros((shown.shape[0], CITY_ITEMS), np.int64)
        seen[row, context.history[row, place]] = np.where(place == 0, 2, 1)
        return np.take_along_axis(seen, shown, 1)

    def _columns(self, first: int, context: _Context) -> dict[str, pa.Array]:
        """Returns the context's columns, one value per request."""
        ids = first + np.arange(context.user.size)
        touched = context.city[:, None] * CITY_ITEMS + context.history
        last = np.where(context.history_count > 0, touched[:, 0], -1)
        return {
            "request_id": pa.array(ids),
            "timestamp": pa.array(START_S + STEP_S * ids),
            "user_id": self._user_names.take(pa.array(context.user)),
            "platform": self._platform_names.take(pa.array(self._platform[context.user])),
            "city": self._city_names.take(pa.array(context.city)),
            "device": pa.array(DEVICES).take(pa.array(self._device[context.user])),
            "filters": _lists(pa.array(FILTERS), context.filters, context.filter_count),
            "last_item": self._item_names.take(pa.array(last, mask=last < 0)),
            "recent_items": _lists(self._item_names, touched, context.history_count),
        }


def _zipf(size: int, exponent: float) -> F64:
    weights = np.arange(1, size + 1) ** -exponent
    return np.asarray(weights / weights.sum())


def _draw(random: np.random.Generator, log_weights: F64, count: int) -> I64:
    """Draws `count` different columns per row with probabilities by weight, in the order drawn.

    With Gumbel noise, sampling without replacement is a sort (Efraimidis and Spirakis, 2006).
    """
    noisy = log_weights + random.gumbel(size=log_weights.shape)
    return np.argsort(-noisy, axis=1)[:, :count]


def _ranks(values: F64) -> I64:
    """Returns each value's rank within its row, from 1, smallest first."""
    return np.argsort(np.argsort(values, axis=1), axis=1) + 1


def _lists(names: pa.Array, index: I64, count: I64) -> pa.ListArray:
    """Returns, per row, the names of the first `count` indices."""
    held = np.arange(index.shape[1]) < count[:, None]
    offsets = np.concatenate(([0], np.cumsum(count))).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), names.take(pa.array(index[held])))


def _bias(logits: F64) -> float:
    """Finds the constant that makes the mean click rate CLICK_RATE, by bisection."""
    low, high = -30.0, 30.0
    for _ in range(50):
        middle = (low + high) / 2
        rate = float((1 / (1 + np.exp(-(logits + middle)))).mean())
        low, high = (middle, high) if rate < CLICK_RATE else (low, middle)
    return low
