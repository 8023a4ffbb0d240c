"""The pages in `docs/reference` name every setting, every metric, and every event of the agent."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from consumer_agent import Consumer
from consumer_agent.config import ConsumerConfig
from consumer_agent.membership.effects import RecordFetcher, RecordPollLate, RecordQuarantined
from consumer_agent.runtime.out_of_range import OutOfRange
from consumer_agent.runtime.record_buffer import Run
from consumer_agent.runtime.telemetry import Telemetry
from consumer_agent.sidecar.http_endpoints import numbers
from consumer_agent.sidecar.run_counts import RunCounts
from consumer_agent.sidecar.sidecar import SidecarSettings
from tests.unit.consumer_agent.messages import messages
from zkrebalancer.observe.events import EventLog

DOCS = Path(__file__).parents[3] / "docs"


def rows(document: str) -> Iterator[list[str]]:
    """Return the cells of every row of the tables of a document."""
    for line in (DOCS / document).read_text(encoding="utf-8").splitlines():
        if line.startswith("| "):
            yield [cell.strip() for cell in line.strip("|").split(" |")]


def named(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def test_every_setting_is_there() -> None:
    documented = {name for cells in rows("reference/settings.md") for name in named(cells[0])}
    settings = {entry.name for entry in (*fields(ConsumerConfig), *fields(SidecarSettings)) if entry.name != "command"}
    assert settings - documented == set()


def test_every_number_is_there() -> None:
    text = (DOCS / "reference" / "metrics.md").read_text(encoding="utf-8")
    consumer = Consumer(zookeeper="z:1", bootstrap="b:1", group="g")
    own = consumer.metrics().keys()
    table = text.partition("\n## Agent")[2].partition("\n\n|")[2].partition("\n\n")[0]
    assert {name for line in table.splitlines() for name in named(line.split("|")[0 if line[0] != "|" else 1])} == own
    of_the_child = numbers(consumer, RunCounts(has_child=True)).keys() - own
    assert of_the_child
    assert all(f"`{name}`" in text for name in of_the_child)


def test_every_event_is_there_with_its_keys(tmp_path: Path) -> None:
    telemetry = Telemetry(EventLog(tmp_path, "agent"), "g")
    tp = ("t", 0)
    telemetry.delivered([Run(*tp, 3, messages(tp, [5]))], 1)
    telemetry.fetcher(RecordFetcher("fetcher_started", "c", 3, None, {tp: 5}, command_id="one"))
    telemetry.fetcher(RecordFetcher("fetcher_stopped", "c", 3, None, {tp: 6}, "revoked", command_id="two"))
    telemetry.out_of_range(OutOfRange(tp, 5, 10, 20, 10))
    telemetry.committed("c", 3, {tp: 6})
    telemetry.poll_late(RecordPollLate("c", 200, 300, gives_up=False))
    telemetry.quarantined(RecordQuarantined("c", "command-1", "not msgpack"))
    telemetry.close()
    (file,) = tmp_path.iterdir()
    events = [json.loads(line) for line in file.read_text().splitlines()]
    common = {"ts_us", "mono_us", "host", "boot", "process", "kind", "group", "generation", "cause_id"}
    documented = {
        kind: set(named(f"`{cells[1]}`".replace(", ", "`, `").replace("``", "`")))
        for cells in rows("reference/events.md")
        for kind in named(cells[0])
    }
    assert {event["kind"]: event.keys() - common for event in events} == {
        event["kind"]: documented.get(event["kind"]) for event in events
    }
    assert len({event["kind"] for event in events}) == len(events)
