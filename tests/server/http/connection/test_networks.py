"""Tests which network has most members, against a plain count."""

from __future__ import annotations

import random

from polyrec.server.http.connection.limits import Networks


def test_the_largest_network_is_that_of_a_plain_count() -> None:
    rng = random.Random(5)
    networks = Networks[int]()
    members: dict[int, str] = {}
    for number in range(3000):
        if members and rng.random() < (0.4 if number < 1500 else 0.6):
            member = rng.choice(list(members))
            assert networks.discard(member, members.pop(member))
        else:
            members[number] = rng.choice("aabcdefgh")
            networks.add(number, members[number])
        assert not networks.discard(-1, "a")
        counts = {each: list(members.values()).count(each) for each in members.values()}
        assert all(networks.size(each) == counts.get(each, 0) for each in "abcdefghi")
        assert len(networks) == len(counts)
        largest = list(networks.largest())
        assert len(largest) == max(counts.values(), default=0)
        if largest:
            network = members[largest[0]]
            assert largest == [each for each, its in members.items() if its == network]
