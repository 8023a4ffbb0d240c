"""A topic mirror beside a cluster."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import tempfile

from tests.integration.commands import command_of
from tests.support.answers import get
from tests.support.deadlines import WITHIN_S
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.localcluster.ports import free_ports
from zkrebalancer.localcluster.server import child_environment


def check_pages(cluster: LocalCluster) -> None:
    """Run a mirror as systemd does: it notifies systemd, and serves its pages until SIGTERM."""
    http = f"127.0.0.1:{free_ports(1)[0]}"
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"{folder}/notify")
        systemd.settimeout(WITHIN_S)
        place = ("--bootstrap", cluster.bootstrap, "--zookeeper", cluster.zookeeper, "--http", http, "--interval", 0.1)
        mirror = subprocess.Popen(
            command_of("zkrebalancer", "topics", "mirror", *place),
            env={**child_environment(), "NOTIFY_SOCKET": f"{folder}/notify", "WATCHDOG_USEC": "10000000"},
            stderr=subprocess.PIPE,
        )
        try:
            assert systemd.recv(4_096).split(b"\n")[1:] == [b"READY=1", b"WATCHDOG=1"]
            answers = {path: get(http, path)[1] for path in ("liveness", "readiness", "metrics")}
            assert json.loads(answers["liveness"]) == {"alive": True, "faults": [], "topics": 0, "brokers": 1}
            assert json.loads(answers["readiness"])["ready"]
            assert "zkrebalancer_mirror_brokers 1.0" in answers["metrics"]
            mirror.send_signal(signal.SIGHUP)  # it is no reason to end
            mirror.send_signal(signal.SIGUSR1)
            assert mirror.stderr is not None
            line = next(text for text in mirror.stderr if b"mirror: " in text)
            assert line.rstrip().endswith(b"mirror: 0 topics, 1 brokers; faults: none")
            mirror.terminate()
            assert mirror.wait(WITHIN_S) == 0
            told = b""
            while told != b"STOPPING=1":
                told = systemd.recv(4_096)
        finally:
            mirror.kill()
            mirror.communicate()
