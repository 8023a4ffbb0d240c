"""A bad argument raises at once, with its name and what is allowed; nothing has been connected by then."""

from __future__ import annotations

import copy
import math
import os
import pickle
import signal
import warnings
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest

from consumer_agent import AsyncConsumer, ConfigurationError, Consumer, ConsumerStateError
from consumer_agent.membership.offset_books import NO_OFFSET
from consumer_agent.spark import PlanningConsumer
from tests.support.deadlines import WITHIN_S

TP = ("orders", 0)
DEADLINE_S = int(WITHIN_S)


def new_consumer() -> Consumer:
    return Consumer(zookeeper="z:1", bootstrap="b:1", group="g")


NO_TIMEOUTS = [-1, math.nan, math.inf, "1", True, 1e10, 10**400]
WITH_TIMEOUT = ["commit", "committed", "close", "unsubscribe"]


@pytest.mark.parametrize(
    ("method", "timeout_s"), [*product(["poll", *WITH_TIMEOUT], NO_TIMEOUTS), *product(WITH_TIMEOUT, [None])]
)
def test_a_timeout_is_a_number_of_seconds(method: str, timeout_s: Any) -> None:
    or_none = ", or None" if method == "poll" else ""
    with pytest.raises(
        ConfigurationError, match=rf"^{method}: timeout_s must be a number of seconds, 0 to 1000000000{or_none}, not "
    ):
        getattr(new_consumer(), method)(timeout_s=timeout_s)


@pytest.mark.parametrize("max_records", [-2, 100_001, 1.0, 0.0, "", "1", [], True, False])
def test_a_limit_of_records_is_a_number_in_its_range(max_records: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^poll: max_records must be 1 to 100000, not .*, or -1 for no"):
        new_consumer().poll(0, max_records=max_records)


@pytest.mark.parametrize("finish", [1, 0, "yes"])
def test_whether_to_finish_is_yes_or_no(finish: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^close: finish must be True, False or None, not "):
        new_consumer().close(finish=finish)


def test_only_automatic_commits_can_store_what_close_finishes() -> None:
    consumer = Consumer(zookeeper="z:1", bootstrap="b:1", group="g", enable_auto_commit=False)
    with pytest.raises(ConfigurationError, match=r"^close: finish=True needs enable_auto_commit; call commit\(\)"):
        consumer.close(finish=True)
    consumer.close(finish=False)


@pytest.mark.parametrize("topics", [[["orders"]], [b"orders"], {1: 1}, [None]])
def test_a_topic_is_a_text(topics: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^subscribe: a topic must be a string, not "):
        new_consumer().subscribe(topics)


@pytest.mark.parametrize("value", [["earliest"], {}, 5, "yesterday"])
def test_where_a_partition_begins_is_a_word_or_a_time(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^auto_offset_reset: must be earliest, latest, none, or a time"):
        Consumer(zookeeper="z:1", bootstrap="b:1", group="g", auto_offset_reset=value)


@pytest.mark.parametrize("config", [{"group": "g"}, {}, "zk:2181", 0, b""])
def test_settings_are_given_by_name(config: Any) -> None:
    """Others' consumers take a dictionary; what it holds may be secret."""
    with pytest.raises(
        ConfigurationError, match=r"^a ConsumerConfig is expected, or settings by name \(group=…\), not "
    ):
        Consumer(config)


def test_more_topics_than_a_node_holds_are_refused() -> None:
    """ZooKeeper would break the connection at every try to register."""
    with pytest.raises(
        ConfigurationError, match=r"^subscribe: the names of 4000 topics take \d+ bytes, at most 900000 "
    ):
        new_consumer().subscribe([f"{number:0249}" for number in range(4_000)])
    new_consumer().subscribe([f"{number:0200}" for number in range(4_000)])


def test_more_topics_than_one_member_can_own_are_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"^subscribe: 40001 topics by name, at most 40000 are allowed; a pattern "
    ):
        new_consumer().subscribe([f"{number}" for number in range(40_001)])
    new_consumer().subscribe([f"{number}" for number in range(40_000)])


@pytest.mark.parametrize("on_commit", ["print", 0, False, ()])
def test_who_is_told_of_a_commit_is_callable(on_commit: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^commit_async: on_commit must be callable, not "):
        new_consumer().commit_async(None, on_commit)


@pytest.mark.parametrize("name", ["on_assign", "on_revoke", "on_lost"])
def test_a_callback_is_callable(name: str) -> None:
    callbacks: dict[str, Any] = {name: "print"}
    with pytest.raises(ConfigurationError, match=rf"^subscribe: {name} must be callable, not 'print'"):
        new_consumer().subscribe(["orders"], **callbacks)


async def waiting(*_: object) -> None: ...


class Waiting:
    async def __call__(self, *_: object) -> None: ...


@pytest.mark.parametrize("function", [waiting, partial(waiting, 1), Waiting()])
def test_what_nothing_would_await_is_refused(function: Any) -> None:
    """It would not run at all: `run` would count every record as finished."""
    consumer = new_consumer()
    consumer.subscribe(["orders"])
    calls: dict[str, Callable[[], object]] = {
        "subscribe: on_revoke": lambda: consumer.subscribe(["orders"], on_revoke=function),
        "commit_async: on_commit": lambda: consumer.commit_async(None, function),
        "run: handler": lambda: consumer.run(function),
    }
    for name, call in calls.items():
        with pytest.raises(ConfigurationError, match=f"^{name} may not be a coroutine function"):
            call()
    settings: dict[str, Any] = {"zookeeper": "z:1", "bootstrap": "b:1", "group": "g"}
    AsyncConsumer(**settings).subscribe(["orders"], on_revoke=function)


@pytest.mark.parametrize("partition", [("orders", -1), ("orders", 2**31), ("", 0), ("a\0", 0), ("\ud800", 0)])
def test_kafkas_client_gets_only_partitions_that_there_may_be(partition: tuple[str, int]) -> None:
    consumer = new_consumer()
    calls: dict[str, Callable[[], object]] = {
        "beginning_offsets": lambda: consumer.beginning_offsets([partition]),
        "offsets_for_times": lambda: consumer.offsets_for_times({partition: 1}),
        "seek": lambda: consumer.seek({partition: 1}),
    }
    for name, call in calls.items():
        with pytest.raises(ConfigurationError, match=f"^{name}: Kafka allows no partition "):
            call()


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


def test_partitions_without_a_place_have_no_position() -> None:
    consumer = new_consumer()
    consumer._frontend.shared.admit(TP, 1, NO_OFFSET)
    assert consumer.position() == consumer.finished() == {}


@pytest.mark.parametrize("copying", [pickle.dumps, copy.copy, copy.deepcopy])
@pytest.mark.parametrize("kind", [Consumer, AsyncConsumer])
def test_a_consumer_is_neither_copied_nor_pickled(
    kind: type[Consumer | AsyncConsumer], copying: Callable[[object], object]
) -> None:
    consumer = kind(zookeeper="z:1", bootstrap="b:1", group="g")
    with pytest.raises(TypeError, match=f"^{kind.__name__} cannot be pickled or copied: make one in each process"):
        copying(consumer)


def test_after_a_fork_everything_but_close_says_so() -> None:
    """The lock that the other threads held at that moment is never released in the new process."""
    consumer = new_consumer()
    consumer.subscribe(["orders"])
    calls: list[Callable[[], object]] = [
        consumer.poll,
        consumer.unsubscribe,
        consumer.assignment,
        consumer.paused,
        consumer.position,
        consumer.finished,
        consumer.generation,
        consumer.metrics,
        partial(consumer.finish, {TP: 1}),
        partial(PlanningConsumer(zookeeper="z:1", bootstrap="b:1", group="g").advance, {TP: 1}, {TP: 1}),
        partial(consumer.subscribe, ["orders"]),
        partial(consumer.run, print),
    ]
    with consumer._frontend.shared.lock, warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        child = os.fork()
        if not child:
            signal.alarm(DEADLINE_S)  # ends a process that waits for the lock
            try:
                consumer.close()
                os._exit(0 if all(map(is_refused, calls)) else 1)
            finally:  # an exception would let it go on as a second process of the test run
                os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


def is_refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except ConsumerStateError as error:
        return "the process before the fork" in str(error)
    return False
