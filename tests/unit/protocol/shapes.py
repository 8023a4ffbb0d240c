"""Hypothesis strategies for the contents of nodes, valid and invalid."""

from __future__ import annotations

import string
from typing import Any

from hypothesis import strategies as st

from zkrebalancer.protocol import registration
from zkrebalancer.protocol.cluster_nodes import CoordinatorAddress
from zkrebalancer.protocol.command import Cause, StartFetcher, StopFetcher
from zkrebalancer.protocol.fields import MAX_EPOCH_MS, MAX_PARTITION
from zkrebalancer.protocol.ownership import EvictionRecord, OwnersRecord, StaticMember
from zkrebalancer.protocol.registration import MAX_SESSION_TIMEOUT_MS, Registration
from zkrebalancer.protocol.settings import GroupSettings

COUNTS = st.integers(0, 2**63 - 1)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=30)
LEGAL_CHARACTERS = f"{string.ascii_letters}{string.digits}._-"
NAMES = st.text(LEGAL_CHARACTERS, min_size=1, max_size=20).filter(lambda name: name not in {".", ".."})
PARTITIONS = st.tuples(NAMES, st.integers(0, 40) | st.integers(0, MAX_PARTITION))
OWNED = st.dictionaries(PARTITIONS, st.integers(0, 999), max_size=30)
CAUSES = st.builds(Cause, TEXTS, TEXTS)

COMMANDS = st.builds(StartFetcher, TEXTS, COUNTS, COUNTS, CAUSES, OWNED) | st.builds(
    StopFetcher, TEXTS, COUNTS, COUNTS, CAUSES, st.none() | st.frozensets(PARTITIONS, max_size=30)
)
OWNERS_RECORDS = st.builds(OwnersRecord, COUNTS, st.none() | TEXTS, OWNED)
TIMES_MS, LEASES_MS = st.integers(0, MAX_EPOCH_MS), st.integers(0, MAX_SESSION_TIMEOUT_MS)
EVICTION_RECORDS = st.builds(EvictionRecord, COUNTS, OWNED, TIMES_MS, LEASES_MS, st.lists(NAMES, max_size=5).map(tuple))
STATIC_MEMBERS = st.builds(StaticMember, NAMES, st.frozensets(PARTITIONS, max_size=30), st.none() | COUNTS)
ADDRESSES = st.builds(CoordinatorAddress, COUNTS, TEXTS, COUNTS, st.none() | TEXTS, TEXTS)
SETTINGS = st.builds(
    GroupSettings,
    strategy=TEXTS,
    mode=st.sampled_from(["eager", "incremental"]),
    frozen=st.booleans(),
    starts_paused=st.booleans(),
    paused_by=st.text(max_size=20),
    rebalance_timeout_ms=st.integers(10, 3_600_000),
    max_rebalance_retries=st.integers(0, 1_000),
    rebalance_debounce_ms=st.integers(0, 60_000),
    rebalance_debounce_cap_ms=st.integers(0, 600_000),
    static_grace_ms=st.integers(0, 86_400_000),
)

_THREADS = st.integers(1, registration.MAX_THREADS)
_SUBSCRIPTIONS = st.one_of(
    st.tuples(st.just("static"), st.dictionaries(NAMES, _THREADS, max_size=4)),
    st.tuples(st.sampled_from(["white_list", "black_list"]), st.dictionaries(TEXTS, _THREADS, min_size=1, max_size=1)),
)


@st.composite
def registrations(draw: st.DrawFn) -> Registration:
    pattern, subscription = draw(_SUBSCRIPTIONS)
    return Registration(
        pattern=pattern,
        subscription=subscription,
        timestamp=draw(TEXTS),
        client_id=draw(TEXTS),
        host=draw(TEXTS),
        session_timeout_ms=draw(st.integers(1, registration.MAX_SESSION_TIMEOUT_MS)),
        instance_id=draw(st.none() | NAMES),
        rack=draw(st.none() | TEXTS),
        capacity=draw(st.floats(0, allow_infinity=False)),
        stop_timeout_ms=draw(st.none() | st.integers(1, registration.MAX_STOP_TIMEOUT_MS)),
    )


# Values that JSON or msgpack can carry but no schema allows.

ODD_TEXTS = st.text(st.characters(), max_size=10) | st.sampled_from(
    ["\ud800", "", ".", "..", "a/b", "\0", "1\n2", "٣", "x" * 70_000, "-1", "007", "[[0, 1]]"]
)
ODD_NUMBERS = st.sampled_from(
    [True, False, -1, 2**31, 2**63, 2**64 - 1, 10**400, 1.0, 1e308, float("nan"), float("inf"), float("-inf")]
)
ODD_RANGES = st.sampled_from(
    [
        [[0, 2**31 - 1]],
        [[0, 1_000_000]],
        [[2, 1]],
        [[0, 10**400]],
        [[0, 1], [1, 2]],
        [[1, 1], [0, 0]],
        [[0]],
        [[0, 1, 2]],
        [[-1, 0]],
        [[0, True]],
        [[0.0, 1.0]],
        [0, 1],
        {},
    ]
)
ODD_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ODD_TEXTS | ODD_NUMBERS | ODD_RANGES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ODD_TEXTS, inner, max_size=4),
    max_leaves=10,
)


@st.composite
def distorted(draw: st.DrawFn, documents: st.SearchStrategy[dict[str, Any]]) -> dict[str, Any]:
    """Return a valid document in which one value, at any depth, is replaced, renamed or removed."""
    document = draw(documents)
    at: Any = document
    while True:
        if not at or (at is not document and draw(st.booleans())):
            break
        key = draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
        if isinstance(at[key], dict | list) and at[key] and draw(st.booleans()):
            at = at[key]
            continue
        if isinstance(at, dict) and draw(st.booleans()):
            at[draw(ODD_TEXTS)] = at.pop(key)
        elif draw(st.booleans()):
            at[key] = draw(ODD_VALUES)
        else:
            del at[key]
        break
    return document
