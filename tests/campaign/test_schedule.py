"""The schedule: a seed determines a campaign; every kind has its turn; kinds drawn together are compatible."""

from __future__ import annotations

import itertools
from collections import Counter

from tests.campaign.schedule import KINDS, MAX_AT_ONCE, MAX_OFFSET_S, REGISTRATIONS, SERVERS_AWAY, go_together, rounds

SESSION_S = 3.0


def test_one_seed_gives_one_schedule() -> None:
    first, again, other = (list(itertools.islice(rounds(seed, KINDS, SESSION_S), 200)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_each_deck_has_every_kind_as_often_as_it_has_cards() -> None:
    dealt: Counter[str] = Counter()
    for faults in rounds(7, KINDS, SESSION_S):
        dealt.update(fault.kind for fault in faults)
        if dealt.total() == sum(kind.cards for kind in KINDS.values()):
            break
    assert dealt == {name: kind.cards for name, kind in KINDS.items()}


def test_a_round_is_bounded() -> None:
    for faults in itertools.islice(rounds(3, KINDS, SESSION_S), 500):
        assert 1 <= len(faults) <= MAX_AT_ONCE
        assert faults[0].at_s == 0
        for fault in faults:
            shortest, longest = KINDS[fault.kind].lasts
            assert 0 <= fault.at_s <= MAX_OFFSET_S
            assert shortest * SESSION_S <= fault.lasts_s <= longest * SESSION_S
            assert 0 <= fault.pick < 1
            assert fault.detail in KINDS[fault.kind].details
        for one, other in itertools.combinations(faults, 2):
            assert go_together(one.kind, other.kind)


def test_faults_overlap() -> None:
    sizes = Counter(len(faults) for faults in itertools.islice(rounds(5, KINDS, SESSION_S), 500))
    assert set(sizes) == {1, 2, 3}


def test_kinds_that_cannot_be_caused_here_are_left_out() -> None:
    kinds = set(KINDS) - {"fill-disk", "jump-clock"}
    drawn = {fault.kind for faults in itertools.islice(rounds(1, kinds, SESSION_S), 300) for fault in faults}
    assert drawn == kinds


def test_faults_of_the_same_server_do_not_overlap() -> None:
    assert not go_together("restart-broker", "lose-quorum")
    assert not go_together("delete-topic", "join")
    assert not go_together("join", "join")
    assert go_together("suspend-agent", "lose-quorum")


def test_a_session_is_ended_by_force_only_if_its_client_can_learn_of_it() -> None:
    for other in ("suspend-zookeeper", "kill-zookeeper-leader", "lose-quorum", "cut-all"):
        assert not go_together("expire-agent", other)
    drawn = list(itertools.islice(rounds(1, KINDS, 3.0), 500))
    ending = [faults for faults in drawn if any(fault.detail == REGISTRATIONS for fault in faults)]
    assert len(ending) >= 5
    assert SERVERS_AWAY.isdisjoint(fault.kind for faults in ending for fault in faults)
    assert KINDS.keys() >= SERVERS_AWAY
