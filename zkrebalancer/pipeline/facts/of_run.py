"""The tables about ownership, plans, steps and costs of a run, by the classes of `observe`, event after event.

What is remembered is what may still change: open intervals and the last one of each partition, plans, the current step,
a counter of each process. So memory does not grow with the records, nor with the events of costs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from zkrebalancer.observe.checker import GONE
from zkrebalancer.observe.holdings import ENDED, Held, Holdings, Judged, Moment, era_of
from zkrebalancer.observe.measures import END, Effect, Steps, Window, effect
from zkrebalancer.observe.partition_history import CLOSED
from zkrebalancer.observe.reading import Event
from zkrebalancer.observe.rebalances import Plan, RebalanceLog
from zkrebalancer.pipeline.facts.delays import Delays
from zkrebalancer.pipeline.facts.reduced import BIN, SECOND

_KEY = "run string, group string, topic string, partition int"
_ORDER = "struct<mono_us: bigint, file: string, block: bigint, row: bigint>"
SCHEMAS = {  # of the tables, as Spark's DDL
    "eras": "run string, topic string, deleted_us array<bigint>",
    "intervals": f"{_KEY}, member string, generation bigint, cause_id string, started_us bigint, position bigint, "
    f"ended_us bigint, ended_by string, began {_ORDER}, ceased {_ORDER}, start_early_us bigint, start_late_us bigint, "
    "end_early_us bigint, end_late_us bigint, era int, until_us bigint, excused_us bigint",
    "legs": f"{_KEY}, member string, era int, held_us bigint, until_us bigint, started_us bigint, position bigint",
    "overlaps": f"{_KEY}, member string, other string, began_us bigint, ended_us bigint, is_certain boolean",
    "gaps": f"{_KEY}, began_us bigint, ended_us bigint, member string, previous string, generation bigint, "
    "cause_id string",
    "moves": f"{_KEY}, at_us bigint, member string, previous string, is_moved boolean, generation bigint, "
    "cause_id string",
    "rebalances": "run string, group string, generation bigint, cause_id string, mode string, cause string, "
    "members bigint, partitions bigint, moved bigint, outcome string, requested_us bigint, planned_us bigint, "
    "sent_us bigint, acked_us bigint, finished_us bigint, settled_ms double, pause_ms_max double",
    "steps": "run string, step bigint, name string, target string, cause_id string, from_us bigint, to_us bigint, "
    "unsettled_ms bigint, settled_ms double, first_record_ms double, unowned_partition_ms double, moved bigint, "
    "moved_least bigint, stopped_needlessly bigint",
    "delays": "run string, group string, topic string, step bigint, bin int, records bigint, max_us bigint",
    "delay_figures": "run string, group string, step bigint, records bigint, delay_p50_ms double, delay_p99_ms double, "
    "delay_max_ms double",
    "delay_curve": "run string, group string, second bigint, records bigint, mean_ms double, max_ms double",
    "costs": "run string, step bigint, role string, target string, cpu_ms double, rss_bytes_max bigint, "
    "requests bigint, bytes bigint",
}
Row = tuple[Any, ...]  # in the order of the table's columns
Key = tuple[str, str, int]  # group, topic and partition


class RunFacts:
    """The tables of one run up to the last event; `rows` has those that are complete, and may be emptied."""

    def __init__(self, run: str) -> None:
        """Begin before the first event of `run`."""
        self.rows: dict[str, list[Row]] = {name: [] for name in SCHEMAS}
        self._run = run
        self._holdings: dict[Key, Holdings] = {}
        self._started: dict[tuple[str, str], set[Key]] = defaultdict(set)  # by group and member
        self._gone: dict[tuple[str, str], Moment] = {}  # members that may not start anything any more, and since when
        self._deleted_us: dict[str, list[int]] = defaultdict(list)  # by topic
        self._log = RebalanceLog()
        self._planned: set[tuple[str, int | None]] = set()  # group and generation of plans with a recorded start
        self._steps = Steps()
        self._cause_id: str | None = None  # of the current step
        self._delays = Delays()
        self._handlers: dict[str, Callable[[Event], None]] = {
            "fetcher_started": self._start,
            "fetcher_stopped": self._stop,
            "ownership_ended": self._end,
            "repositioned": self._seek,
            "member_left": self._leave,
            "topic_deleted": self._delete_topic,
            "rebalance_requested": self._log.requested,
            "rebalance_planned": self._log.planned,
            "rebalance_finished": self._log.finished,
            "command_sent": self._log.commanded,
            "command_acked": self._log.commanded,
            "step": self._step,
            BIN: self._delays.add_bin,
            SECOND: self._add_second,
        }

    def apply(self, event: Event) -> None:
        """Apply one event, which has the keys of ORDER and BOUNDS."""
        handle = self._handlers.get(event["kind"])
        if handle is not None:
            handle(event)
        if event["kind"] != "step":
            self._steps.apply(event)

    def unjudged(self) -> Iterator[tuple[Key, Held]]:
        """Iterate over the intervals that later events may change."""
        return ((key, held) for key, holdings in self._holdings.items() for held in holdings.unjudged)

    def era(self, topic: str, at_us: int) -> int:
        """Return how often a topic had been deleted before a time."""
        return era_of(self._deleted_us.get(topic, ()), at_us)

    def finish(self) -> None:
        """Complete all tables; call it once, after the last event."""
        for key, holdings in self._holdings.items():
            judged, last = holdings.finish()
            self._judge(key, judged)
            if last is not None:
                self._add("gaps", *key, last.ended_us, None, None, last.member, None, None)
        for topic, deleted_us in self._deleted_us.items():
            self._add("eras", topic, deleted_us)
        for plan in self._log.plans:
            self._add("rebalances", *self._rebalance(plan))
        if self._steps.window is not None:
            self._end_step(self._steps.window, None)
        self._delays.finish()
        self._add_curve()
        for row in self._delays.bins():
            self._add("delays", *row)
        for row in self._delays.figures():
            self._add("delay_figures", *row)
        for step, process, cost in self._steps.costs:
            cpu_ms = None if cost.cpu_us is None else cost.cpu_us / 1_000
            self._add("costs", step, *process, cpu_ms, cost.rss_bytes_max, cost.requests, cost.bytes)

    def _add_second(self, event: Event) -> None:
        self._delays.add_second(event)
        self._add_curve()

    def _add_curve(self) -> None:
        for row in self._delays.curve:
            self._add("delay_curve", *row)
        self._delays.curve.clear()

    def _add(self, table: str, *values: object) -> None:
        self.rows[table].append((self._run, *values))

    # Ownership ------------------------------------------------------------------------------------------------------

    def _start(self, event: Event) -> None:
        moment, era = _moment(event), self.era(event["topic"], event["mono_us"])
        generation, cause_id = event.get("generation"), event.get("cause_id")
        if cause_id is not None:
            self._planned.add((event["group"], generation))
        gone = self._gone.get((event["group"], event["member"]))
        if gone is not None and moment.may_be_before(gone):
            return  # it may have been before its member's end, which closed it; else it would last for ever
        for key, position in zip(_keys(event), event["positions"], strict=True):
            self._started[event["group"], event["member"]].add(key)
            held = Held(event["member"], generation, cause_id, position, moment, era)
            self._judge(key, self._holdings.setdefault(key, Holdings()).start(held))

    def _stop(self, event: Event) -> None:
        for key in _keys(event):
            self._close(key, event, event["reason"])

    def _end(self, event: Event) -> None:
        if event["reason"] in GONE:
            self._gone[event["group"], event["member"]] = _moment(event)
        for key in self._started.get((event["group"], event["member"]), ()):
            self._close(key, event, ENDED)
            self._holdings[key].find_dead(event["member"], _moment(event), is_said=False)

    def _leave(self, event: Event) -> None:
        if event["reason"] != CLOSED:
            for key in self._started.get((event["group"], event["member"]), ()):
                self._holdings[key].find_dead(event["member"], _moment(event), is_said=True)

    def _delete_topic(self, event: Event) -> None:
        self._deleted_us[event["topic"]].append(event["mono_us"])
        for (_group, topic, _number), holdings in self._holdings.items():
            if topic == event["topic"]:
                holdings.delete_topic()

    def _close(self, key: Key, event: Event, reason: str) -> None:
        holdings = self._holdings.get(key)
        if holdings is not None:
            holdings.close(event["member"], _moment(event), reason)

    def _seek(self, event: Event) -> None:
        moment, era = _moment(event), self.era(event["topic"], event["mono_us"])
        for key, position in zip(_keys(event), event["positions"], strict=True):
            holdings = self._holdings.get(key)
            if holdings is not None:
                holdings.seek(event["member"], moment, position, era, begins=event["reason"] == "begin")

    def _judge(self, key: Key, judged: Iterable[Judged]) -> None:
        for each in judged:
            held, other = each.held, each.other
            plan = (held.generation, held.cause_id)
            self._add("intervals", *key, held.member, *_interval(held))
            for at_us, position, until_us in held.legs():
                self._add("legs", *key, held.member, held.era, held.began.us, until_us, at_us, position)
            if each.previous is not None:
                is_moved = held.member != each.previous
                self._add("moves", *key, held.began.us, held.member, each.previous, is_moved, *plan)
            if other is None:
                continue
            if each.overlap is not None:
                self._add("overlaps", *key, held.member, other.member, held.began.us, *each.overlap)
            if (began_us := each.gap_began_us) is not None:
                self._add("gaps", *key, began_us, held.began.us, held.member, other.member, *plan)
                of_plan = {"group": key[0], "generation": held.generation, "cause_id": held.cause_id}
                self._log.started(of_plan, held.began.us - began_us)

    # Plans and steps ------------------------------------------------------------------------------------------------

    def _rebalance(self, plan: Plan) -> Iterator[object]:
        found, phases = plan.rebalance, plan.phases
        yield from (found.group, found.generation, plan.cause_id, found.mode, self._log.cause_of(plan))
        yield from (found.members, found.partitions, found.moved, phases.outcome or found.outcome)
        yield from (self._log.requested_us.get(plan.cause_id), plan.planned_us)
        yield from (phases.sent_us, phases.acked_us, phases.finished_us, phases.settled_ms)
        is_started = (found.group, found.generation) in self._planned
        least_ms = None if phases.finished_us is None else 0.0
        yield (least_ms if found.pause_ms_max is None else found.pause_ms_max) if is_started else phases.measured_ms

    def _step(self, event: Event) -> None:
        window = self._steps.window
        self._steps.apply(event)
        if window is not None:
            self._end_step(window, event["mono_us"])
        if event["name"] != END:
            self._cause_id = event.get("cause_id")

    def _end_step(self, window: Window, to_us: int | None) -> None:
        found: Effect = effect(window, self._steps.owners())
        named = (window.number, window.name, window.target, self._cause_id)
        unowned_ms = 0.0 if to_us is None else window.unowned_us / 1_000
        times = (found.settled_ms, found.first_record_ms, unowned_ms)
        times_ms = [None if each is None else float(each) for each in times]
        counts = (found.moved, found.moved_least, found.stopped_needlessly)
        self._add("steps", *named, window.began_us, to_us, window.unsettled_ms, *times_ms, *counts)


def _keys(event: Event) -> list[Key]:
    return [(event["group"], event["topic"], number) for number in event["partitions"]]


def _moment(event: Event) -> Moment:
    at = (event["mono_us"], event["file"], event["block"], event["row"])
    host, boot = event.get("host"), event.get("boot")
    return Moment(at, event["early_us"], event["late_us"], (host, boot) if host and boot else None)


def _interval(held: Held) -> Sequence[object]:
    began, ceased = held.began, held.ceased
    bounds = (0, 0) if ceased is None else (ceased.early_us, ceased.late_us)
    return (
        held.generation,
        held.cause_id,
        began.us,
        held.position,
        held.ended_us,
        held.ended_by,
        began.at,
        None if ceased is None else ceased.at,
        began.early_us,
        began.late_us,
        *bounds,
        held.era,
        held.until_us,
        held.excused_us,
    )
