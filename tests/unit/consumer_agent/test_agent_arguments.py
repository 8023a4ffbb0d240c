"""A bad argument raises at once, with its name and what is allowed; nothing has been connected by then."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from consumer_agent import ConfigurationError, Consumer, ConsumerStateError

TP = ("orders", 0)


def new_consumer() -> Consumer:
    return Consumer(zookeeper="z:1", bootstrap="b:1", group="g")


@pytest.mark.parametrize("method", ["poll", "commit", "committed", "close", "unsubscribe"])
@pytest.mark.parametrize("timeout_s", [-1, math.nan, math.inf, "1", None, True])
def test_a_timeout_is_a_number_of_seconds(method: str, timeout_s: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"^{method}: timeout_s must be a number of at least 0, not "):
        getattr(new_consumer(), method)(timeout_s=timeout_s)


@pytest.mark.parametrize("name", ["on_assign", "on_revoke", "on_lost"])
def test_a_callback_is_callable(name: str) -> None:
    callbacks: dict[str, Any] = {name: "print"}
    with pytest.raises(ConfigurationError, match=rf"^subscribe: {name} must be callable, not 'print'"):
        new_consumer().subscribe(["orders"], **callbacks)


@pytest.mark.parametrize(
    ("positions", "complaint"),
    [
        ([(TP, 1)], "seek: positions must map"),
        ({"orders": 1}, r"seek: a partition must be \(topic, partition\), not 'orders'"),
        ({("orders", "0"): 1}, r"seek: a partition must be"),
        ({("orders", True): 1}, r"seek: a partition must be"),
        ({TP: -1}, r"seek: the offset of \('orders', 0\) must be 0 to \d+, not -1"),
        ({TP: 1.5}, "seek: the offset of"),
        ({TP: 2**63}, "seek: the offset of"),
    ],
)
def test_positions_map_partitions_to_offsets(positions: Any, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        new_consumer().seek(positions)


@pytest.mark.parametrize("method", ["pause", "resume"])
@pytest.mark.parametrize("partitions", [None, "orders", [("orders",)], [("orders", 0, 1)], [(1, 0)]])
def test_partitions_are_pairs(method: str, partitions: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"^{method}: "):
        getattr(new_consumer(), method)(partitions)


@pytest.mark.parametrize(
    "call",
    [
        lambda consumer: consumer.seek({TP: 1}),
        lambda consumer: consumer.pause([TP]),
        lambda consumer: consumer.resume([TP]),
        lambda consumer: consumer.commit(),
        lambda consumer: consumer.poll(0),
    ],
)
def test_what_needs_partitions_is_refused_before_the_first_poll(call: Callable[[Consumer], object]) -> None:
    with pytest.raises(ConsumerStateError):
        call(new_consumer())


def test_closing_twice_does_nothing() -> None:
    consumer = new_consumer()
    consumer.close()
    consumer.close()


def test_unsubscribing_from_nothing_does_nothing() -> None:
    consumer = new_consumer()
    consumer.unsubscribe()
    consumer.subscribe(["orders"])
    consumer.unsubscribe()
    consumer.subscribe(["payments"])


@pytest.mark.parametrize(("handler", "threads"), [("print", 1), (None, 1), (print, 0), (print, True), (print, 1_001)])
def test_a_handler_is_callable_and_threads_are_a_number(handler: Any, threads: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^run: (handler must be callable|threads must be 1 to 1000), not "):
        new_consumer().run(handler, threads=threads)
