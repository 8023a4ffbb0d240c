"""Senseless requests and broken frames arrive all the time, while servers are killed and return.

The gateway goes on, needs no more memory, and the honest groups behind it lose nothing.
"""

from __future__ import annotations

import functools
import random
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.integration.gateway_process import GatewayProcess
from tests.integration.kafka_clients import KIP_848, Reader, produce
from tests.support.waiting import wait_until
from tests.unit.gateway.test_any_request import Sent, some_requests
from zkrebalancer.experiments.lab import Lab
from zkrebalancer.gateway.frames import framed
from zkrebalancer.gateway.links import KEYS
from zkrebalancer.kafka_protocol import codec
from zkrebalancer.kafka_protocol.codec import Header
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.localcluster.ports import HOST

pytestmark = pytest.mark.long  # a minute for each way of assigning, and servers of its own
TOPIC, PARTITIONS = "raw", 6
ATTACKERS = 8
DRAWN = 300  # lists of requests
MOST_ODD = 5  # an attack sends up to as many frames
ANSWER_S = 0.2
MAX_GROWTH_BYTES = 100 << 20


def drawn_frames() -> list[bytes]:
    """Return requests that can be decoded, however senseless."""
    found: list[bytes] = []

    @settings(
        max_examples=DRAWN,
        database=None,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(some_requests())
    def collect(sent: list[Sent]) -> None:
        for _pause_ms, name, version, content in sent:
            found.append(framed(codec.encode_header(Header(KEYS[name], version, 7, "raw")) + content))

    collect()
    return found


class Attack:
    """Threads that send such requests, and bytes that are none, until the end of the `with`."""

    def __init__(self, gateway: GatewayProcess, frames: list[bytes]) -> None:
        self._where = (HOST, gateway.port)
        self._frames = frames
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(seed,), daemon=True) for seed in range(ATTACKERS)]
        self.attacks = 0

    def __enter__(self) -> Self:
        for one in self._threads:
            one.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._is_over.set()
        for one in self._threads:
            one.join()

    def has_made(self, attacks: int) -> bool:
        return self.attacks >= attacks

    def _run(self, seed: int) -> None:
        draw = random.Random(seed)
        while not self._is_over.wait(0.01):
            try:
                with socket.create_connection(self._where, timeout=ANSWER_S) as client:
                    for _ in range(draw.randint(1, MOST_ODD)):
                        client.sendall(self._bytes(draw))
                    if draw.random() < 0.7:
                        client.recv(1 << 16)
            except OSError:
                pass  # refused, ended by the gateway, or no answer in time
            self.attacks += 1

    def _bytes(self, draw: random.Random) -> bytes:
        frame = draw.choice(self._frames)
        match draw.randint(0, 9):
            case 0:
                return frame[: draw.randint(0, len(frame))]
            case 1:
                return framed(draw.randbytes(draw.randint(0, 64)))
            case 2:
                return struct.pack(">i", draw.choice([-1, 0, 1, 2**31 - 1])) + frame[4:]
            case 3:
                at = draw.randrange(len(frame))
                return frame[:at] + draw.randbytes(1) + frame[at + 1 :]
            case _:
                return frame


@pytest.fixture(params=["client", "central"])
def gateway(request: pytest.FixtureRequest, lab: Lab, folder: Path) -> Iterator[GatewayProcess]:
    """Start a gateway; no step of it may fail."""
    one = GatewayProcess(lab.cluster, folder, "--assign", request.param)
    one.start()
    yield one
    one.kill()
    assert [line for line in one.log.read_text().splitlines() if "Traceback" in line or " failed (" in line] == []


@pytest.fixture
def lab(folder: Path) -> Iterator[Lab]:
    """Open a lab with servers of its own, a coordinator and a topic."""
    with LocalCluster(chroot="/raw", broker="kafka-4") as cluster, Lab(cluster, folder / "events") as one:
        one.start_coordinator(1)
        one.wait_leader()
        one.create_topic(TOPIC, PARTITIONS)
        yield one


def test_honest_groups_lose_nothing(lab: Lab, gateway: GatewayProcess) -> None:
    readers = {
        kind: [Reader(kind, gateway.bootstrap, f"honest-{number}", TOPIC) for _ in range(2)]
        for number, kind in enumerate(("confluent", KIP_848))
    }
    produced = 0

    def is_shared(both: list[Reader]) -> bool:
        owned = sorted(partition for reader in both for partition in reader.assigned)
        return owned == list(range(PARTITIONS)) and all(reader.assigned for reader in both)

    def settle(what: str) -> None:
        nonlocal produced
        produce(lab.cluster.bootstrap, TOPIC, [f"{number}" for number in range(produced, produced + 300)])
        produced += 300
        expected = {f"{number}" for number in range(produced)}
        for kind, both in readers.items():
            wait_until(functools.partial(is_shared, both), f"{what}: {kind} do not share all partitions")
            wait_until(
                lambda both=both: {value for one in both for value in one.values} == expected,  # type: ignore[misc]
                f"{what}: {kind} do not read everything",
            )

    settle("before")
    (zookeeper,) = lab.cluster.zookeeper_servers
    before_bytes = gateway.resident_bytes()
    with Attack(gateway, drawn_frames()) as attack:
        settle("during the attack")
        for what, server in (("ZooKeeper", zookeeper), ("the broker", lab.cluster.broker)):
            server.kill()
            attacks = attack.attacks
            wait_until(functools.partial(attack.has_made, attacks + 500), f"{what} is away: no attack ends")
            server.start()
            settle(f"after {what} was killed")
    settle("after the attack")
    assert gateway.resident_bytes() - before_bytes < MAX_GROWTH_BYTES
    for both in readers.values():
        for reader in both:
            reader.close()
