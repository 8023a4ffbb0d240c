"""A gateway as a process, with a block of free ports."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gevent
import psutil

from tests.integration.commands import command_of
from tests.support.deadlines import WITHIN_S
from tests.support.warm import WarmProcess, starter
from zkrebalancer.gateway.layout import LAYOUT, decode
from zkrebalancer.group_protocol.placement import bucket_of, gateway_of
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.localcluster.ports import HOST, free_block, free_ports
from zkrebalancer.localcluster.server import child_environment
from zkrebalancer.protocol.calls import Content, Get
from zkrebalancer.runtime.zk import BlockingZk

PORTS = 4  # its own, and those of three brokers


class GatewayProcess:
    """`zkrebalancer group-coordinator` on one cluster, where clients assign by default; `log` has its output.

    Without an `environment`, it is a fork of an interpreter that has imported its packages.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        folder: Path,
        *options: object,
        host: str = HOST,
        port: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.port = free_block(PORTS) if port is None else port
        self.bootstrap = f"{host}:{self.port}"
        self.http = f"{HOST}:{free_ports(1)[0]}"
        self.log = folder / f"gateway-{host}-{self.port}.log"
        self._command = [
            *command_of("zkrebalancer", "group-coordinator", "--listen", self.bootstrap),
            *("--upstream", cluster.bootstrap, "--zookeeper", cluster.zookeeper, "--http", self.http),
            *("--initial-rebalance-delay-ms", "200", "--session-timeout-ms", "6000", "--log-level", "info"),
            *(("--assign", "client") if "--assign" not in options else ()),
            *(str(option) for option in options),
        ]
        self._environment = environment
        self._process: subprocess.Popen[bytes] | WarmProcess | None = None

    def start(self) -> None:
        """Start it and wait until it is ready."""
        with self.log.open("ab") as log:
            if self._environment is None:
                self._process = starter().begin(self._command[2:], log.fileno(), log.fileno())
            else:
                environment = {**child_environment(), **self._environment}
                self._process = subprocess.Popen(self._command, stdout=log, stderr=log, env=environment)
        try:
            self._wait_ready()
        except BaseException:
            self.kill()  # in the tests that follow, it would be one more gateway of the same cluster
            raise

    def _wait_ready(self) -> None:
        assert self._process is not None
        give_up_at = time.monotonic() + WITHIN_S
        while not self.is_ready():
            assert self._process.poll() is None, self.log.read_text()
            assert time.monotonic() < give_up_at, self.log.read_text()
            gevent.sleep(0.05)  # the test's ZooKeeper session lives on

    def is_ready(self) -> bool:
        try:
            return bool(self.get("/readiness")["ready"])
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def get(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://{self.http}{path}", timeout=WITHIN_S) as answer:
            document: dict[str, Any] = json.load(answer)
        return document

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://{self.http}/metrics", timeout=WITHIN_S) as answer:
            return str(answer.read(), "utf-8")

    def kill(self) -> None:
        """End it with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(WITHIN_S)

    def stop(self) -> int:
        """End it with SIGTERM and return its exit code."""
        os.kill(self.pid, signal.SIGTERM)
        return self.wait()

    def end(self) -> None:
        """End it if it runs; the next one of its cluster would wait until the session of a killed one is over."""
        if self._process is not None and self._process.poll() is None:
            self.stop()

    def wait(self) -> int:
        """Wait for its end and return its exit code."""
        assert self._process is not None
        return self._process.wait(WITHIN_S)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def resident_bytes(self) -> int:
        return int(psutil.Process(self.pid).memory_info().rss)

    def troubles(self) -> list[str]:
        """Return the unexpected lines of its log."""
        signs = ("Traceback", " ERROR ", "Error:")
        return [line for line in self.log.read_text().splitlines() if any(sign in line for sign in signs)]


def group_of(cluster: LocalCluster, gateways: list[GatewayProcess], served_by: GatewayProcess, name: str) -> str:
    """Return the name of a group, beginning with `name`, that this one of the gateways serves."""
    with BlockingZk(cluster.zookeeper) as zk:
        content = zk.perform(Get(LAYOUT))
    assert isinstance(content, Content)
    numbers = decode(content.content).gateways
    names = [str(numbers[one.bootstrap]) for one in gateways]
    wanted = str(numbers[served_by.bootstrap])
    candidates = (f"{name}-{number}" for number in itertools.count())
    return next(one for one in candidates if gateway_of(bucket_of(one), names) == wanted)
