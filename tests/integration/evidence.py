"""What a failed test shows of its processes: the state of each group, the last events, and the ends of the logs.

The folder with the whole events and logs may be on another machine, so this has to be enough to find the cause. It is
short, because reports of continuous integration are cut.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gevent

from tests.integration.gateway_process import GatewayProcess
from tests.integration.kafka_clients import RUNNING
from tests.integration.scenario import Scenario
from zkrebalancer.experiments.lab import Lab
from zkrebalancer.experiments.tail import EventTail
from zkrebalancer.observe import inspection
from zkrebalancer.observe.inspection import GroupReport
from zkrebalancer.protocol import fields
from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.runtime.zk import BlockingZk

MAX_CHARACTERS = 6_000  # of logs and of events; half of it each
MAX_LINES = 40  # of one log
MAX_LINE_CHARACTERS = 240
MAX_EVENTS = 60
MAX_GROUPS = 4
READ_DEADLINE_S = 10.0
FREQUENT = {"produced", "delivered", "committed"}  # they would displace the others
KNOWN = {
    "ts_us",
    "mono_us",
    "boot",
    "host",
    "process",
    "kind",
    "cause_id",
    "command_id",
    "positions",
    "asked_us",
    "sent_us",
}
REST_OF_UUID = re.compile(r"(?<=-[0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def gather(fixtures: Iterable[object]) -> Iterator[tuple[str, str]]:
    """Yield a title and a text for each lab, and for the gateways, among the fixtures of a test."""
    logs: dict[str, Path] = {}
    labs = []
    for one in fixtures:
        if isinstance(one, GatewayProcess):
            logs["gateway"] = one.log
        elif isinstance(one, Scenario | Lab):
            labs.append(one.lab if isinstance(one, Scenario) else one)
    for lab in labs:
        logs |= {program.name: program.log for program in lab.programs.values()}
    if RUNNING:
        yield "Kafka clients", "\n".join(map(str, RUNNING))
    if logs:
        yield "ends of logs", _short(ends(logs))
    for lab in labs:
        yield "last events", last_events(lab.events)
        yield "groups", _short(groups(lab.zk))


def _short(text: str) -> str:
    """Leave of each uuid in the text what distinguishes the few of a test."""
    return REST_OF_UUID.sub("", text)


def ends(logs: Mapping[str, Path]) -> str:
    """Return the last lines of each log; each has its share of the space."""
    shares = {name: _last_lines(log) for name, log in logs.items()}
    texts = []
    left = MAX_CHARACTERS // 2
    for place, (name, lines) in enumerate(sorted(shares.items(), key=lambda each: sum(map(len, each[1])))):
        kept = _last_that_fit(lines, left // (len(shares) - place))
        left -= sum(map(len, kept))
        texts += [f"== {name}", *kept]
    return "\n".join(texts)


def _last_lines(log: Path) -> list[str]:
    if not log.exists():
        return ["(no log)"]
    return [line[:MAX_LINE_CHARACTERS] for line in log.read_text(errors="replace").splitlines()[-MAX_LINES:]]


def _last_that_fit(lines: list[str], characters: int) -> list[str]:
    kept: list[str] = []
    for line in reversed(lines):
        characters -= len(line)
        if characters < 0:
            break
        kept.append(line)
    return kept[::-1]


def last_events(folder: Path) -> str:
    """Return the last events, each with its age in seconds."""
    events = [event for event in EventTail(folder).read() if event["kind"] not in FREQUENT]
    now_us = time.monotonic_ns() // 1_000
    lines = [_short(_event(event, now_us)) for event in events[-MAX_EVENTS:]]
    return "\n".join(_last_that_fit(lines, MAX_CHARACTERS // 2))


def _event(event: Mapping[str, Any], now_us: int) -> str:
    more = " ".join(
        f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in event.items()
        if key not in KNOWN and value is not None
    )
    return f"{(event['mono_us'] - now_us) / 1e6:.2f} s {event['process']} {event['kind']} {more}"[:MAX_LINE_CHARACTERS]


def groups(zk: BlockingZk) -> str:
    """Return who leads, and of each group who owns what and why it is stuck; or why that cannot be read."""
    texts: list[str] = []
    try:
        with gevent.Timeout(READ_DEADLINE_S):
            leader = inspection.read_leader(zk)
            texts.append(f"leader: {leader.brokerid if leader else 'none'}")
            reports, refused = inspection.read_groups(zk)
            texts += map(str, refused)
            used = [report for report in reports if report.state != inspection.EMPTY]  # others may be of other tests
            texts += [line for report in used[:MAX_GROUPS] for line in _group(zk, report)]
    except (RebalancerError, gevent.Timeout) as error:
        texts.append(f"cannot be read: {type(error).__name__} {error}")
    return "\n".join(texts)


def _group(zk: BlockingZk, report: GroupReport) -> Iterator[str]:
    usual = asdict(GroupSettings())
    own = {key: value for key, value in asdict(report.settings).items() if value != usual[key]}
    yield f"group {report.name}: {report.state}, generation {report.generation}, settings {own}"
    for member in report.members:
        known = member.registration
        owned = fields.topics_to_ranges(frozenset(member.owners.partitions)) if member.owners else "unreadable"
        yield (
            f"  {member.consumer} ({known.client_id if known else 'unreadable'}) owns {owned}"
            f" since generation {member.owners.generation if member.owners else None}"
            f", {member.pending_commands} pending commands"
        )
    yield from (f"  {each.kind}: {each.text}" for each in inspection.read_obstacles(zk, report))
    yield from (f"  problem: {problem}" for problem in report.problems.lines())
