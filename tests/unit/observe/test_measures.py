"""The figures of a run, computed from handwritten events."""

from __future__ import annotations

from typing import Any

from zkrebalancer.observe.measures import least_moves, load_peak, measure
from zkrebalancer.observe.reading import Event, find_flaw


def event(kind: str, at_ms: int, **fields: Any) -> Event:
    made = {"kind": kind, "mono_us": at_ms * 1_000, "group": "g", **fields}
    assert find_flaw(made) is None
    return made


def step(number: int, name: str, at_ms: int, target: str = "") -> Event:
    return event("step", at_ms, number=number, name=name, target=target)


def fetcher(kind: str, member: str, at_ms: int, *partitions: int) -> Event:
    fields = {"topic": "t", "partitions": list(partitions), "positions": [-1] * len(partitions), "reason": "revoked"}
    return event(f"fetcher_{kind}", at_ms, member=member, **fields)


def delivered(member: str, at_ms: int, partition: int, *delays_ms: int) -> Event:
    offsets = {"first_offset": 0, "last_offset": len(delays_ms) - 1, "count": len(delays_ms)}
    delays_us = [delay * 1_000 for delay in delays_ms]
    return event("delivered", at_ms, member=member, topic="t", partition=partition, delays_us=delays_us, **offsets)


def produced(at_ms: int, partition: int, count: int) -> Event:
    return event("produced", at_ms, topic="t", partition=partition, first_offset=7, last_offset=6 + count)


def spent(at_ms: int, requests: int, cpu_us: int) -> list[Event]:
    return [
        event("counted", at_ms, role="broker", target="b", requests=requests, bytes_in=requests, bytes_out=requests),
        event("sampled", at_ms, role="broker", target="b", cpu_us=cpu_us, rss_bytes=1),
    ]


BEGIN = [fetcher("started", "a", 1, 0, 1, 2, 3), *spent(2, 100, 5_000), step(1, "before", 10)]


def test_a_join_with_one_needless_stop() -> None:
    events = [
        *BEGIN,
        delivered("a", 11, 0, 5),
        step(2, "add-member", 1_000, "b"),
        fetcher("stopped", "a", 1_100, 1, 2, 3),
        fetcher("started", "a", 1_120, 1),
        delivered("a", 1_150, 1, 10, 20, 30, 400),
        fetcher("started", "b", 1_300, 2, 3),
        *spent(1_900, 130, 9_000),
        step(3, "end", 2_000),
        fetcher("stopped", "b", 2_100, 2, 3),
    ]
    figures, steps = measure(events)
    assert [(row["number"], row["name"], row["target"]) for row in steps] == [(1, "before", ""), (2, "add-member", "b")]
    assert steps[0]["delay_max_ms"] == figures["before_delay_max_ms"] == 5
    assert steps[0]["unowned_partition_ms"] == 0
    expected = {
        "settled_ms": 300,
        "unowned_partition_ms": 20 + 200 + 200,
        "delay_p50_ms": 20,
        "delay_p99_ms": 400,
        "delay_max_ms": 400,
        "moved": 2,
        "moved_least": 2,
        "stopped_needlessly": 1,
        "unheld": 0,
        "requests": 30,
        "bytes": 60,
        "cpu_ms": 4,
    }
    assert {key: steps[1][key] for key in expected} == expected
    assert {key: figures[key] for key in expected} == expected


def test_a_crash_counts_from_the_kill_and_a_thawed_member_owns_nothing() -> None:
    events = [
        *BEGIN,
        step(2, "freeze-member", 1_000, "a"),
        event("ownership_ended", 1_000, member="a", reason="frozen"),
        step(3, "thaw-member", 5_000, "a"),  # still without an owner: the time continues in the next window
        delivered("a", 5_100, 0, 4_000, 4_100),
        fetcher("stopped", "a", 5_200, 0, 1, 2, 3),
        fetcher("started", "b", 6_000, 0, 1, 2, 3),
        step(4, "end", 7_000),
    ]
    figures, (_before, freeze, thaw) = measure(events)
    assert freeze["unowned_partition_ms"] == 4 * 4_000
    assert thaw["unowned_partition_ms"] == 4 * 1_000
    assert thaw["settled_ms"] == 1_000
    assert thaw["unheld"] == 2
    assert thaw["stopped_needlessly"] == 0
    assert figures["unowned_partition_ms"] == 20_000
    assert figures["requests"] == figures["cpu_ms"] == 0


def test_the_member_that_a_step_is_about_stops_for_a_reason() -> None:
    """In `effect`, count its stops: a restart would be charged for what it is."""
    events = [*BEGIN, step(2, "restart-member", 1_000, "a"), fetcher("stopped", "a", 1_010, 0, 1, 2, 3)]
    events += [fetcher("started", "a", 1_020, 0, 1, 2, 3), step(3, "end", 2_000)]
    _figures, steps = measure(events)
    assert steps[1]["stopped_needlessly"] == 0
    others = [{**one, "target": "b"} if one.get("name") == "restart-member" else one for one in events]
    assert measure(others)[1][1]["stopped_needlessly"] == 4


def test_a_run_at_rest_costs_what_its_processes_do_but_the_producers() -> None:
    """In `_at_rest`, add the producers, as in `cpu_ms`, or what a second at rest costs grows with the records."""

    def seen(at_ms: int, role: str, cpu_ms: int, rss_mb: int) -> Event:
        return event("sampled", at_ms, role=role, target=role, cpu_us=1_000 * cpu_ms, rss_bytes=1_000_000 * rss_mb)

    def count(at_ms: int, role: str, count: int) -> Event:
        return event("counted", at_ms, role=role, target=role, requests=count, bytes_in=10 * count, bytes_out=count)

    events = [
        *(seen(1, role, 100, 500) for role in ("member", "producer", "mirror")),
        *(count(1, role, 0) for role in ("zookeeper", "broker")),
        step(1, "before", 10),
        *(seen(1_000, role, cpu_ms, 20) for role, cpu_ms in (("member", 130), ("producer", 900), ("mirror", 105))),
        count(1_000, "zookeeper", 6),
        seen(2_000, "member", 130, 30),
        step(2, "add-member", 2_010, "b"),
        *(seen(2_100, role, cpu_ms, 900) for role, cpu_ms in (("member", 138), ("producer", 950))),
        *(count(2_100, role, requests) for role, requests in (("zookeeper", 10), ("broker", 3))),
        step(3, "end", 3_010),
    ]
    figures, (before, joined) = measure(events)
    assert (before["length_ms"], joined["length_ms"]) == (2_000, 1_000)
    assert {name: figures[name] for name in figures if name.startswith(("rest_", "rss"))} == {
        "rest_requests_per_s": 3,
        "rest_zookeeper_bytes_per_s": 33,
        "rest_cpu_ms_per_s": 17.5,
        "rest_cpu_member_ms_per_s": 15,
        "rest_cpu_mirror_ms_per_s": 2.5,
        "rest_cpu_producer_ms_per_s": 400,
        "rss_member_mb": 30,
        "rss_mirror_mb": 20,
        "rss_mb": 50,
    }
    expected = {
        "requests": 7,
        "bytes": 77,
        "zookeeper_bytes": 44,
        "cpu_ms": 58,
        "cpu_without_producers_ms": 8,
        "cpu_member_ms": 8,
        "cpu_mirror_ms": 0,
        "cpu_producer_ms": 50,
    }
    assert {name: joined[name] for name in expected} == {name: figures[name] for name in expected} == expected


def test_where_a_run_has_rest_its_beginning_does_not_count_as_such() -> None:
    """In `measure`, pool both: a group that rests for 15 s still costs what JVMs take to compile."""

    def seen(at_ms: int, cpu_ms: int, rss_mb: int) -> Event:
        return event("sampled", at_ms, role="member", target="a", cpu_us=1_000 * cpu_ms, rss_bytes=1_000_000 * rss_mb)

    events = [
        seen(1, 0, 10),
        step(1, "before", 10),
        seen(1_000, 800, 20),
        step(2, "rest", 1_010),
        seen(2_000, 810, 30),
        seen(3_000, 820, 30),
        step(3, "end", 3_010),
    ]
    figures, _steps = measure(events)
    assert (figures["rest_cpu_member_ms_per_s"], figures["rss_mb"]) == (10, 30)
    figures, _steps = measure([*events[:3], step(2, "end", 1_010)])
    assert (figures["rest_cpu_member_ms_per_s"], figures["rss_mb"]) == (800, 20)


def test_new_partitions_count_as_unowned_from_the_beginning_of_their_step() -> None:
    events = [*BEGIN, step(2, "grow-topic", 1_000), fetcher("started", "a", 1_250, 4, 5), step(3, "end", 2_000)]
    _figures, (_before, grown) = measure(events)
    assert grown["unowned_partition_ms"] == 500
    assert grown["moved"] == grown["moved_least"] == 0


def test_figures_that_were_not_measured_are_none() -> None:
    figures, steps = measure([step(1, "before", 10), step(2, "rest", 20), step(3, "end", 30)])
    assert len(steps) == 2
    assert figures["settled_ms"] is None
    assert figures["delay_p99_ms"] is None
    assert figures["cpu_ms"] is None


def test_the_load_peak_weighs_owners_at_the_end_of_a_step_by_produced_records() -> None:
    events = [
        *BEGIN,
        produced(20, 0, 1_000),
        step(2, "rest", 1_000),
        produced(1_100, 0, 30),
        step(3, "add-member", 2_000, "b"),
        produced(2_100, 0, 30),
        fetcher("stopped", "a", 2_200, 1, 2, 3),
        fetcher("started", "b", 2_300, 1, 2, 3),
        produced(2_400, 1, 10),
        step(4, "end", 3_000),
    ]
    figures, steps = measure(events)
    assert [row["load_peak"] for row in steps] == [1.0, 1.0, 1.5]
    assert figures["load_peak"] == 1.5
    assert load_peak({}, {("g", "t", 0): "a"}) is load_peak({("t", 0): 1}, {}) is None


def test_the_least_moves() -> None:
    held = {("t", number): owner for number, owner in enumerate("aaaabbb")}
    assert least_moves(held, "ab") == 0
    assert least_moves(held, "abc") == 2  # 3 + 2 + 2
    assert least_moves(held, "a") == 3
    assert least_moves(held, "cd") == 7
    assert least_moves({}, "ab") == least_moves(held, "") == 0


def at_us(made: Event, mono_us: int) -> Event:
    return {**made, "mono_us": mono_us}


def test_times_are_in_milliseconds_with_one_digit() -> None:
    events = [
        *BEGIN,
        step(2, "add-member", 1_000, "b"),
        at_us(fetcher("stopped", "a", 0, 1), 1_100_000),
        at_us(fetcher("started", "b", 0, 1), 1_123_456),
        step(3, "end", 2_000),
    ]
    _figures, steps = measure(events)
    assert (steps[1]["settled_ms"], steps[1]["unowned_partition_ms"]) == (123.5, 23.5)


def test_what_all_processes_spent_is_added_up() -> None:
    def count(at_ms: int, target: str, requests: int) -> Event:
        fields = {"requests": requests, "bytes_in": 2 * requests, "bytes_out": None}
        return event("counted", at_ms, role="broker", target=target, **fields)

    events = [count(1, "b", 10), count(1, "c", 100), step(1, "before", 10), step(2, "add-member", 20, "x")]
    events += [count(30, "b", 13), count(30, "c", 105), count(31, "new", 7), step(3, "end", 40)]
    _figures, steps = measure(events)
    assert (steps[1]["requests"], steps[1]["bytes"]) == (8, 16)  # of one that is new, nothing is known of before


def test_the_first_record_is_that_of_a_partition_at_its_new_owner() -> None:
    """In `_Run._delivered`, keep one time for all; in `_figures`, say nothing."""
    events = [
        *BEGIN,
        step(2, "add-member", 1_000, "b"),
        delivered("a", 1_050, 0, 5),  # it has not moved
        fetcher("stopped", "a", 1_100, 2, 3),
        fetcher("started", "b", 1_200, 2, 3),
        delivered("b", 1_260, 3, 5),
        delivered("b", 1_270, 2, 5),
        step(3, "kill-member", 2_000, "a"),
        fetcher("started", "b", 2_100, 0),
        delivered("b", 2_400, 0, 6),
        step(4, "end", 3_000),
        fetcher("stopped", "b", 3_100, 2, 3),
    ]
    figures, steps = measure(events)
    assert [row["first_record_ms"] for row in steps] == [None, 260, 400]
    assert (figures["first_record_ms"], figures["first_record_max_ms"]) == (330, 400)


def test_several_groups_settle_each_at_its_time() -> None:
    def started(group: str, member: str, at_ms: int, *partitions: int) -> Event:
        return {**fetcher("started", member, at_ms, *partitions), "group": group}

    def stopped(group: str, member: str, at_ms: int, *partitions: int) -> Event:
        return {**fetcher("stopped", member, at_ms, *partitions), "group": group}

    events = [
        *(started(group, f"{group}.a", 1, 0, 1) for group in ("g", "h", "i")),
        step(1, "before", 10),
        step(2, "add-members", 1_000, "3 members"),
        *(stopped(group, f"{group}.a", 1_100, 1) for group in ("g", "h", "i")),
        *(started(group, f"{group}.b", at_ms, 1) for group, at_ms in (("g", 1_110), ("h", 1_150), ("i", 1_900))),
        step(3, "add-member", 3_000, "g.c"),
        stopped("g", "g.a", 3_010, 0),
        started("g", "g.c", 3_030, 0),
        step(4, "end", 4_000),
    ]
    _figures, steps = measure(events)
    assert (steps[1]["settled_ms"], steps[1]["group_settled_p50_ms"]) == (900.0, 150.0)
    assert (steps[1]["moved"], steps[1]["moved_least"]) == (3, 3), "the partitions of each group are balanced"
    assert steps[2]["settled_ms"] == 30.0
    assert "group_settled_p50_ms" not in steps[2]
