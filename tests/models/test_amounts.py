from __future__ import annotations

import pytest

from polyrec.models.amounts import ms, percent, rate, size


@pytest.mark.parametrize(
    ("share", "words"),
    [(1.0, "100%"), (0.0, "0%"), (0.5, "50.0%"), (0.99987, "99.99%"), (0.9999, "99.99%"), (0.00004, "0.004%"),
     (0.999999999, "100%")],
)  # fmt: skip
def test_a_share_is_not_rounded_to_all_or_nothing(share: float, words: str) -> None:
    assert percent(share) == words


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (999_600, "1 MB"), (13.94e6, "13.9 MB"),
     (25_276_502_016, "25.3 GB"), (2.16e12, "2.16 TB"), (-5e15, "-5000 TB")],
)  # fmt: skip
def test_bytes_are_in_powers_of_a_thousand(count: float, words: str) -> None:
    assert size(count) == words


@pytest.mark.parametrize(
    ("count", "words"),
    [(1000, "1000 B"), (1024, "1 KiB"), (1000 * 2**10, "1000 KiB"), (32 * 2**20, "32 MiB"), (2**41, "2 TiB")],
)
def test_bytes_of_caches_are_in_powers_of_1024(count: float, words: str) -> None:
    assert size(count, 1024) == words


@pytest.mark.parametrize(
    ("per_s", "words"),
    [(0.5, "0.5"), (123.4, "123"), (1234.5, "1,234"), (92_345, "92,340"), (-2_089, "-2,089")],
)
def test_rates_are_in_full(per_s: float, words: str) -> None:
    assert rate(per_s) == words


def test_times_are_in_milliseconds() -> None:
    assert ms(0.0087512) == "8.75 ms"
