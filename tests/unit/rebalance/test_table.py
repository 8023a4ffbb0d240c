"""Which coordinator should lead which shard."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkrebalancer.rebalance.table import shares, table

HOSTS = st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.integers(1, 5), min_size=1, max_size=6)
SHARDS = st.integers(1, 60)


def firsts(shards: int, hosts: dict[str, int]) -> list[str]:
    return [order[0] for order in table(shards, hosts).values()]


@given(SHARDS, HOSTS)
def test_every_shard_has_all_hosts_in_order_and_every_host_its_share(shards: int, hosts: dict[str, int]) -> None:
    """In `table`, omit a shard, or a host; do not count down `room`."""
    found = table(shards, hosts)
    assert list(found) == list(range(shards))
    assert all(sorted(order) == sorted(hosts) for order in found.values())
    counts = Counter(firsts(shards, hosts))
    assert all(abs(counts[name] - shards * of / sum(hosts.values())) < 1 for name, of in hosts.items())


@given(SHARDS, HOSTS)
def test_the_order_of_the_list_does_not_matter(shards: int, hosts: dict[str, int]) -> None:
    assert table(shards, hosts) == table(shards, dict(reversed(hosts.items())))


@given(st.integers(1, 30), st.sets(st.text("abcdef", min_size=1, max_size=3), min_size=1, max_size=5))
def test_a_join_takes_few_shards_from_others(shards: int, names: set[str]) -> None:
    """Its own share moves, and at most as many between the others, where their shares were full before.

    In `table`, take the hosts in the order of a hash of (shard, number of hosts, host).
    """
    hosts = dict.fromkeys(sorted(names), 1)
    before, after = firsts(shards, hosts), firsts(shards, {**hosts, "new": 1})
    to_new = after.count("new")
    moved = sum(old != now for old, now in zip(before, after, strict=True))
    assert moved <= to_new + shards - shards // len(hosts)


def test_a_join_moves_little_on_average() -> None:
    """Of 60 shards, a fifth host takes 12; up to as many more move, because others reach their share earlier."""
    found = []
    for run in range(50):
        hosts = {f"{run}-{name}": 1 for name in range(4)}
        before, after = firsts(60, hosts), firsts(60, {**hosts, f"{run}-new": 1})
        found.append(sum(old != now for old, now in zip(before, after, strict=True)))
    assert sum(found) / len(found) < 24


def test_what_does_not_divide_goes_to_the_largest_remainders() -> None:
    assert shares(8, {"a": 1, "b": 1, "c": 1}) == {"a": 3, "b": 3, "c": 2}
    assert shares(4, {"a": 3, "b": 1}) == {"a": 3, "b": 1}
    assert shares(1, {"a": 1, "b": 2}) == {"a": 0, "b": 1}


@pytest.mark.parametrize("hosts", [{}, {"a": 1, "b": 0}])
def test_without_hosts_or_capacity_there_is_no_table(hosts: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="positive"):
        shares(4, hosts)
