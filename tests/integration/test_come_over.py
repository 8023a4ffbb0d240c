"""The programs of the page about coming over from other clients: each pair reads every record once."""

from __future__ import annotations

import os
import re
import signal
import sys
from functools import partial
from pathlib import Path

from confluent_kafka import Producer

from tests.integration.fake_coordinator import WAIT_S
from tests.integration.kafka_clients import committed
from tests.integration.scenario import Scenario
from tests.style.sources import ROOT
from tests.support.waiting import wait_until
from zkrebalancer.localcluster.server import Program
from zkrebalancer.protocol.settings import GroupSettings

PROGRAM = re.compile(r"(Before|After):\n```python\n(.*?)```", re.DOTALL)
COUNT = 5


def test_each_program_continues_where_the_former_one_stopped(scenario: Scenario, folder: Path) -> None:
    lab = scenario.lab
    found = PROGRAM.findall((ROOT / "docs/how-to/come-over.md").read_text())
    before, after = ([text for when, text in found if when == wanted] for wanted in ("Before", "After"))
    assert len(before) == len(after) == 3
    topic = scenario.topic("orders")
    groups = [f"billing-{scenario.number}-{client}" for client in range(3)]
    for group in groups:
        lab.configure(group, GroupSettings())
        scenario.groups[group] = []  # so that it is removed at the end
    scenario.add_coordinator()
    lab.create_topic(topic, 1)

    def start(text: str, group: str, name: str) -> Program:
        places = {"localhost:2181/kafka": lab.cluster.zookeeper, "localhost:9092": lab.cluster.bootstrap}
        for place, real in {**places, '"billing"': f'"{group}"', '"orders"': f'"{topic}"'}.items():
            assert place in text or place.startswith("localhost:2181")
            text = text.replace(place, real)
        file = folder / f"{group}-{name}.py"
        file.write_text(text)
        program = lab.cluster.program(file.stem, [sys.executable, str(file)])
        lab.programs[file.stem] = program
        program.spawn()
        return program

    producer = Producer({"bootstrap.servers": lab.cluster.bootstrap})
    for number, (name, texts) in enumerate((("before", before), ("after", after))):
        for value in range(number * COUNT, (number + 1) * COUNT):
            producer.produce(topic, f"{value}".encode())
        assert producer.flush(WAIT_S) == 0
        programs = [start(text, group, name) for text, group in zip(texts, groups, strict=True)]
        for program, group in zip(programs, groups, strict=True):
            wait_until(partial(has_read, program), f"the records of {program.name}")
            if name == "before":  # an interrupt before that is right, and the next one would read the last record again
                wait_until(partial(has_committed, lab.cluster.bootstrap, group), f"the commits of {program.name}")
            os.kill(program.pid, signal.SIGINT)
        for program in programs:
            wait_until(partial(has_ended, program), f"the end of {program.name}")
            assert program.exit_code == -signal.SIGINT
            assert values(program) == [str(value) for value in range(number * COUNT, (number + 1) * COUNT)]


def has_read(program: Program) -> bool:
    return len(values(program)) >= COUNT


def has_committed(bootstrap: str, group: str) -> bool:
    return committed(bootstrap, group) == COUNT


def has_ended(program: Program) -> bool:
    return program.exit_code is not None


def values(program: Program) -> list[str]:
    """Return the numbers that a program has printed."""
    return [line for line in program.log.read_text().splitlines() if line.isdigit()]
