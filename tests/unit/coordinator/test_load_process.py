"""Loads are read on one session, however many groups there are, on another one when that is lost; it is closed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType

import pytest

from zkrebalancer.assignment.loads import to_offsets
from zkrebalancer.assignment.model import Racks
from zkrebalancer.coordinator import held_session, lag_process, load_process
from zkrebalancer.coordinator.held_session import HeldSession
from zkrebalancer.observe import inspection
from zkrebalancer.operations import loads
from zkrebalancer.operations.loads import StoredLoads
from zkrebalancer.protocol.errors import InvalidNameError, ZooKeeperUnavailableError


class World:
    """ZooKeeper and Kafka, as far as sessions are concerned."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sessions: list[World.Session] = []
        self.lives: set[World.Session] = set()
        self.is_down = False
        monkeypatch.setattr(held_session, "BlockingZk", lambda *_arguments: World.Session(self))
        monkeypatch.setattr(loads, "read_loads", self.read)

    class Session:
        def __init__(self, world: World) -> None:
            if world.is_down:
                raise ZooKeeperUnavailableError("nobody there")
            self.world = world
            world.sessions.append(self)
            world.lives.add(self)

        def close(self) -> None:
            self.world.lives.discard(self)

    def read(self, zk: World.Session, _kafka: object, group: str, topics: Mapping[str, int]) -> StoredLoads:
        if zk not in self.lives or self.is_down:
            raise ZooKeeperUnavailableError("broken")
        if group == "odd":
            raise InvalidNameError("odd")
        return StoredLoads(1, to_offsets(topics, {}), to_offsets(topics, {}), {}, None, Racks())


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def error_of(session: HeldSession, group: str) -> object:
    return load_process.answer(session, "z:1", {}, group, {"t": 1}).get("error")


def test_one_session_serves_all_groups_also_after_one_that_cannot_be_read(world: World) -> None:
    session = HeldSession()
    assert [error_of(session, group) for group in ("a", "odd", "b", "a")] == [None, "odd", None, None]
    assert len(world.sessions) == 1


def test_a_lost_session_is_replaced_at_once_and_closed(world: World) -> None:
    session = HeldSession()
    assert error_of(session, "a") is None
    world.lives.clear()
    assert error_of(session, "a") is None
    assert len(world.sessions) == 2
    assert len(world.lives) == 1


def test_while_zookeeper_is_away_each_request_is_answered_once(world: World) -> None:
    session = HeldSession()
    assert error_of(session, "a") is None
    world.is_down = True
    assert [error_of(session, "a") for _ in range(2)] == ["nobody there", "nobody there"]
    assert world.lives == set()
    world.is_down = False
    assert error_of(session, "a") is None


@pytest.mark.parametrize("module", [load_process, lag_process])
def test_at_the_end_of_its_input_a_process_ends_its_session(
    world: World, monkeypatch: pytest.MonkeyPatch, module: ModuleType
) -> None:
    """In `main`, just return: ZooKeeper would have to expire the session."""
    was_open: list[bool] = []

    def answer_all(answer: Callable[..., Mapping[str, object]]) -> None:
        topics = {"topics": {"t": 1}} if module is load_process else {}
        answer(zookeeper="z:1", kafka={}, group="odd", **topics)
        was_open.append(bool(world.lives))

    def refuse(_zk: object, group: str) -> None:
        raise InvalidNameError(group)

    monkeypatch.setattr(inspection, "read_group", refuse)
    monkeypatch.setattr(module, "answer_all", answer_all)
    module.main()
    assert (was_open, world.lives) == ([True], set())
