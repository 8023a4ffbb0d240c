"""Three hosts with compose, by the commands of the page: a host is lost and comes back, and every record is read once.

They are open, and then secured.

The images of ZooKeeper, Kafka and Prometheus are made of this machine's files; the official ones are not reachable.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.docs.rules import blocks
from tests.style.sources import ROOT
from tests.support import docker_engine, server_images
from tests.support.answers import get
from tests.support.waiting import wait_until

PAGE, SECURE_PAGE = ((ROOT / f"docs/how-to/{name}.md").read_text() for name in ("deploy", "secure"))
# As somebody without a login, which the server of the first host lets in.
REFUSED = """docker-compose exec -e ZKREBALANCER_ZOOKEEPER=zk1:2181/kafka -e ZKREBALANCER_ZOOKEEPER_TLS_CA= \\
  -e ZKREBALANCER_ZOOKEEPER_USER= -e ZKREBALANCER_ZOOKEEPER_PASSWORD_FILE= coordinator1 \\
  zkrebalancer groups configure payments strategy=range 2>&1 || true"""
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


SECTION = PAGE[PAGE.index("### Three hosts with compose") : PAGE.index("## Kubernetes")]
FIRST, LOSE, PASSWORDS, SECURE = (content for _, content in blocks(SECTION))
SECRETS = ROOT / "deploy/compose/secrets"


def test_three_hosts_with_compose(run: Callable[[str], str]) -> None:
    up, create, produce, describe, logs, leaders = FIRST.splitlines()
    kill, produce_again, start, down = LOSE.splitlines()
    for line in (up, create, produce):
        run(line)
    wait_until(lambda: read(run, logs) == 60, "60 records are read")
    assert len(re.findall(r"│ orders +│ \d", run(describe))) == 6
    assert run(leaders).count('"leader": true') == 1
    wait_until(lambda: scraped() == [1] * 5, "Prometheus sees all coordinators and agents")
    _lose(run, kill, produce_again, start, logs)
    run(down)
    assert run("docker ps --all --quiet") + run("docker volume ls --quiet") == ""


def _lose(run: Callable[[str], str], kill: str, produce_again: str, start: str, logs: str) -> None:
    """Lose a host with its servers, and bring it back; 60 records were read before, and 60 more are."""
    run(kill)
    wait_until(lambda: leads(2) or leads(3), "another one leads")
    run(produce_again)
    wait_until(lambda: read(run, logs) == 120, "the next 60 are read")
    run(start)
    wait_until(lambda: answer(1, "readiness") == 200, "the coordinator is back")
    wait_until(lambda: run("docker ps --quiet --filter health=healthy").count("\n") == 12, "all are healthy")
    assert read(run, logs) == 120


@pytest.fixture
def secrets() -> Iterator[Path]:
    """Make the folder of secrets; it may not be there before."""
    SECRETS.mkdir(mode=0o700)
    yield SECRETS
    shutil.rmtree(SECRETS)


def test_three_secured_hosts_with_compose(run: Callable[[str], str], secrets: Path) -> None:
    certificates = next(content for _, content in blocks(SECURE_PAGE) if content.startswith("openssl"))
    run(f"cd {secrets}\n{certificates}{PASSWORDS}")
    variables, up, init, restart, check = SECURE.splitlines()

    def run_secured(line: str) -> str:
        """Run a line of the page in the shell in which the variables are set."""
        return run(f"{variables}\n{line}")

    _, create, produce, _, logs, _ = FIRST.splitlines()
    kill, produce_again, start, down = LOSE.splitlines()
    for line in (up, create, produce, init, restart):
        run_secured(line)
    wait_until(lambda: read(run_secured, logs) == 60, "60 records are read")
    wait_until(lambda: "0 not as intended" in run_secured(f"{check} || true"), "the tree is secured")
    assert "Error: ZooKeeper refuses" in run_secured(REFUSED)
    _lose(run_secured, kill, produce_again, start, logs)
    assert "0 not as intended" in run_secured(check)
    words = [file.read_text() for file in secrets.glob("*.password")]
    printed = run_secured("docker-compose logs; docker ps --no-trunc")
    assert not [word for word in words if word in printed]
    run_secured(down)
    assert run("docker ps --all --quiet") + run("docker volume ls --quiet") == ""


def read(run: Callable[[str], str], logs: str) -> int:
    """Return how many records the agents have printed; fail if they printed one twice."""
    lines = re.findall(r"orders/\d+ \d+ ", run(logs))
    assert len(lines) == len(set(lines))
    return len(lines)


def answer(coordinator: int, path: str) -> int:
    return get(f"127.0.0.1:{COORDINATORS[coordinator]}", path)[0]


def leads(coordinator: int) -> bool:
    return answer(coordinator, "leader") == 200


def scraped() -> list[int]:
    _status, found = get("127.0.0.1:9090", "api/v1/query?query=up")
    return [int(one["value"][1]) for one in json.loads(found)["data"]["result"]]
