"""The demo's script, decided by the seed alone."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from zkrebalancer.experiments.demo.run import DemoSettings, count_steps, write_scripts
from zkrebalancer.experiments.demo.script import FIRST_TOPIC, Move, write_script

EVERY_KIND = {"join", "leave", "kill", "freeze", "thaw", "grow", "create", "kill-leader", "restart-coordinator"}


def script(members: int = 5, partitions: int = 24, seed: int = 1) -> list[Move]:
    return write_script("demo", members, partitions, "demo-new", Random(seed))


def settings(seed: int = 1, members: int = 5) -> DemoSettings:
    return DemoSettings(
        seconds=10, members=members, partitions=24, records_per_s=100, seed=seed, events=None, keep=False
    )


@given(members=st.integers(2, 20), seed=st.integers())
def test_targets_are_present_and_a_member_always_stays(members: int, seed: int) -> None:
    present: set[str] = set()
    frozen: set[str] = set()
    moves = script(members, seed=seed)
    assert {move.kind for move in moves} == EVERY_KIND
    for move in moves:
        if move.kind == "join":
            assert move.target not in present
            present.add(move.target)
        elif move.kind in {"leave", "kill", "freeze"}:
            present.remove(move.target)
            assert present, f"no member is left after {move}"
            frozen |= {move.target} if move.kind == "freeze" else set()
        elif move.kind == "thaw":
            frozen.remove(move.target)
            present.add(move.target)
    assert not frozen


def test_all_members_join_before_the_first_leaves() -> None:
    kinds = [move.kind for move in script(members=7)]
    assert kinds[:8] == ["join"] * 7 + ["leave"]


def test_a_member_joins_under_the_new_leader() -> None:
    kinds = [move.kind for move in script()]
    assert kinds[-3:] == ["kill-leader", "join", "restart-coordinator"]


def test_the_seed_decides_the_script() -> None:
    assert write_scripts(settings(seed=4)) == write_scripts(settings(seed=4))
    assert len({tuple(write_scripts(settings(seed=seed))) for seed in range(5)}) > 1


def test_the_second_group_starts_with_the_grown_topic_and_creates_its_own() -> None:
    moves = write_scripts(settings())
    assert [move.partitions for move in moves if move.target == FIRST_TOPIC] == [30, 37]
    assert [move.target for move in moves if move.kind == "create"] == ["demo-payments", "demo-refunds"]
    assert len({move.target for move in moves if move.kind == "join"}) == sum(move.kind == "join" for move in moves)


def test_titles() -> None:
    titles = [move.title for move in script(members=2, partitions=4)]
    assert titles[0] == "demo-1 joins"
    assert "demo-orders grows (partitions: 5)" in titles
    assert "demo-new is created (partitions: 1) and matches the pattern" in titles


def test_every_move_is_a_step() -> None:
    assert count_steps(settings()) == len(write_scripts(settings())) + 5
