"""Three hosts with compose, by the commands of the page: a host is lost and comes back, and every record is read once.

The images of ZooKeeper, Kafka and Prometheus are made of this machine's files; the official ones are not reachable.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.docs.rules import blocks
from tests.style.sources import ROOT
from tests.support import docker_engine, server_images
from tests.support.deadlines import WITHIN_S

PAGE = (ROOT / "docs/how-to/deploy.md").read_text()
COORDINATORS = {1: 8081, 2: 8082, 3: 8083}
pytestmark = pytest.mark.long


@pytest.fixture
def run() -> Iterator[Callable[[str], str]]:
    """Start an engine that has all images; return what runs a line of the page."""
    docker_engine.provide("docker-compose")
    with docker_engine.engine(Path(tempfile.mkdtemp(prefix="compose-"))) as engine:
        with tempfile.TemporaryDirectory() as folder:
            images = server_images.make(engine, Path(folder))
        docker_engine.import_base(engine, "base")
        engine.run(
            "docker build --network=host -f deploy/docker/Dockerfile -t zkrebalancer --build-arg BASE=base .", ROOT
        )
        yield lambda line: engine.run(line.replace(" exec ", " exec -T "), ROOT, **images)


def test_three_hosts_with_compose(run: Callable[[str], str]) -> None:
    section = PAGE[PAGE.index("### Three hosts with compose") : PAGE.index("## Kubernetes")]
    (up, create, produce, describe, logs, leaders), (kill, produce_again, start, down) = (
        content.splitlines() for _, content in blocks(section)
    )
    for line in (up, create, produce):
        run(line)
    eventually(lambda: read(run, logs) == 60, "60 records are read")
    assert len(re.findall(r"│ orders +│ \d", run(describe))) == 6
    assert run(leaders).count('"leader": true') == 1
    eventually(lambda: scraped() == [1] * 5, "Prometheus sees all coordinators and agents")

    run(kill)
    eventually(lambda: leads(2) or leads(3), "another one leads")
    run(produce_again)
    eventually(lambda: read(run, logs) == 120, "the next 60 are read")

    run(start)
    eventually(lambda: answer(1, "readiness") == 200, "the coordinator is back")
    eventually(lambda: run("docker ps --quiet --filter health=healthy").count("\n") == 12, "all are healthy")
    assert read(run, logs) == 120
    run(down)
    assert run("docker ps --all --quiet") + run("docker volume ls --quiet") == ""


def eventually(is_so: Callable[[], object], what: str) -> None:
    give_up_at = time.monotonic() + WITHIN_S
    while not is_so():
        assert time.monotonic() < give_up_at, what
        time.sleep(0.5)


def read(run: Callable[[str], str], logs: str) -> int:
    """Return how many records the agents have printed; fail if they printed one twice."""
    lines = re.findall(r"orders/\d+ \d+ ", run(logs))
    assert len(lines) == len(set(lines))
    return len(lines)


def answer(coordinator: int, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{COORDINATORS[coordinator]}/{path}", timeout=WITHIN_S) as found:
            return int(found.status)
    except OSError as error:
        return int(getattr(error, "code", 0))


def leads(coordinator: int) -> bool:
    return answer(coordinator, "leader") == 200


def scraped() -> list[int]:
    with urllib.request.urlopen("http://127.0.0.1:9090/api/v1/query?query=up", timeout=WITHIN_S) as found:
        return [int(one["value"][1]) for one in json.load(found)["data"]["result"]]
