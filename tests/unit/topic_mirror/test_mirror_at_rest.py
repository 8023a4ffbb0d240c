"""A mirror with nothing to do sends few requests, however much it mirrors, and still corrects others' changes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable

import pytest

from tests.support.zk_model import Right
from tests.unit.topic_mirror.test_mirror_rounds import (
    Guarded,
    MirrorClient,
    Named,
    mirrored,
    new_mirror,
    rounds,
    rounds_with,
)
from tests.unit.topic_mirror.test_topic_mirror import kafka, topic
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Create, Delete, Done, ListChildren, Multi, Operation, SetContent
from zkrebalancer.runtime import clock
from zkrebalancer.topic_mirror.metrics import registry
from zkrebalancer.topic_mirror.mirror import LOOK_S, PARENTS, Mirror

TOPIC_NODE, BROKER_NODE = paths.topic("t"), f"{paths.BROKER_IDS}/1"
PassTime = Callable[[float], None]


@pytest.fixture
def pass_time(monkeypatch: pytest.MonkeyPatch) -> PassTime:
    """Return a function that lets seconds pass; otherwise the clock stands still."""
    now_us = [clock.steady_us()]
    monkeypatch.setattr(clock, "steady_us", lambda: now_us[0])

    def moved(seconds: float) -> None:
        now_us[0] += int(seconds * 1e6)

    return moved


def rounds_each_second(one: Mirror, client: MirrorClient, cluster: Guarded, count: int, pass_time: PassTime) -> None:
    for _ in range(count):
        pass_time(1.0)
        rounds_with(one, client, cluster, 1)


def at_rest(cluster: Guarded) -> tuple[Mirror, MirrorClient]:
    """Return a mirror whose last round had nothing to do."""
    one, client = new_mirror(), MirrorClient()
    rounds_with(one, client, cluster, 3)
    client.performed.clear()
    cluster.requests.clear()
    return one, client


def shown(client: MirrorClient) -> dict[str, dict[str, object]]:
    """Return the contents of all topics and brokers, but for when brokers were registered."""
    nodes = [f"{parent}/{name}" for parent in PARENTS for name in client.model.children(parent)]
    return {path: {**json.loads(client.model.nodes[path].content), "timestamp": None} for path in nodes}


def test_topics_at_rest_cost_four_requests_a_round_however_many_there_are(pass_time: PassTime) -> None:
    """In `Mirror.write`, always read everything; in `read_kafka`, always ask for racks."""
    cluster = Guarded(**{f"t{number}": f"id{number}" for number in range(100)})
    one, client = at_rest(cluster)
    rounds_each_second(one, client, cluster, 29, pass_time)
    assert Counter(client.performed) == dict.fromkeys(map(ListChildren, PARENTS), 29)
    assert cluster.requests == {"list_topics": 29, "describe_topics": 29}
    assert one._seen.rounds == {"done": 32}
    rounds_each_second(one, client, cluster, 1, pass_time)
    assert len(client.performed) == 30 * 2 + 101
    assert cluster.requests["describe_cluster"] == 1


@pytest.mark.parametrize(
    ("harm", "within"),
    [
        (Delete(TOPIC_NODE), 1),
        (Delete(BROKER_NODE), 1),
        (Create(paths.topic("strange"), b"{}"), 2),
        (SetContent(TOPIC_NODE, b'{"topic_id":"id1"}'), int(LOOK_S)),
        (SetContent(BROKER_NODE, b"{}"), int(LOOK_S)),
    ],
)
def test_what_somebody_changes_in_zookeeper_is_put_right(harm: Operation, within: int, pass_time: PassTime) -> None:
    """In `Mirror.write`, do not compare the names; in `_round`, keep for ever the state that was read once."""
    cluster = Guarded(t="id1", u="id2")
    one, client = at_rest(cluster)
    before = shown(client)
    assert isinstance(client.model.perform(Multi((harm,))), Done)
    assert shown(client) != before
    rounds_each_second(one, client, cluster, within, pass_time)
    assert shown(client) == before


def test_another_rack_or_address_of_a_broker_is_noticed(pass_time: PassTime) -> None:
    """In `_with_racks`, compare no addresses, or only them; in `_round`, always pass what was known."""
    cluster = Guarded(t="id1")
    one, client = at_rest(cluster)
    cluster.brokers = {1: Named(id=1, host="other", port=9092, rack="a"), 2: Named(id=2, host="h", port=9093, rack="b")}
    rounds_each_second(one, client, cluster, 1, pass_time)
    assert racks(client) == ["a", "b"]
    rounds_each_second(one, client, cluster, 2, pass_time)
    cluster.brokers[2].rack = "c"
    rounds_each_second(one, client, cluster, int(LOOK_S), pass_time)
    assert racks(client) == ["a", "c"]


def racks(client: MirrorClient) -> list[object]:
    found = shown(client)
    return [found[f"{paths.BROKER_IDS}/{name}"]["rack"] for name in client.model.children(paths.BROKER_IDS)]


def test_a_mirror_is_overdue_only_while_no_round_is_complete(pass_time: PassTime) -> None:
    """In `Mirror.write`, take a round for complete only if ZooKeeper refuses nothing, or count from its end.

    `TopicMirrorFails` would say that no round is complete.
    """
    metadata = kafka(t=topic("id1", 1), u=topic("id2", 1))
    one, client = mirrored(metadata)
    one._interval_s = 600.0
    client.model.denied.add(("", paths.topic("t"), Right.READ))
    rounds(one, client, kafka(t=topic("id1", 2), u=topic("id2", 2)), 3)
    pass_time(600.0)
    assert gauges(one, "overdue_seconds", "refusals") == [0.0, 1.0]
    pass_time(301.0)
    assert gauges(one, "overdue_seconds", "refusals") == [301.0, 1.0]
    client.is_connected = False
    rounds(one, client, metadata, 1)
    assert gauges(one, "overdue_seconds", "refusals") == [301.0, 1.0]
    client.is_connected = True
    client.model.denied.clear()
    rounds(one, client, metadata, 1)
    assert gauges(one, "overdue_seconds", "refusals") == [0.0, 0.0]


def test_the_first_round_is_due_at_once(pass_time: PassTime) -> None:
    """In `Mirror`, after an interval: a mirror that is started again and again before would never be overdue."""
    one = new_mirror()
    pass_time(10.0)
    assert gauges(one, "overdue_seconds") == [10.0]


def gauges(one: Mirror, *names: str) -> list[float | None]:
    page = registry(one._seen)
    return [page.get_sample_value(f"zkrebalancer_mirror_{name}") for name in names]
