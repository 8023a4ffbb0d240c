"""Kafka's own assignors, in a JVM that answers one request after another."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from zkrebalancer.experiments.java_programs import compiled
from zkrebalancer.localcluster import jars
from zkrebalancer.localcluster.errors import LocalClusterError
from zkrebalancer.localcluster.java import find_java

HEAP = "-Xmx8g"
QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")  # for a JVM that has little to do
_SOURCE = Path(__file__).with_name("KafkaAssignors.java")


class KafkaAssignors:
    """A JVM with the Java runner, compiled into the user's cache; it starts with the first request.

    The jars are those of the local cluster's Kafka 4.
    """

    def __init__(self, java_options: Sequence[str] = (HEAP,)) -> None:
        """Find Java and the jars; raises MissingToolError without a JDK, LocalClusterError without the jars."""
        self._java = find_java()
        self._java_options = java_options
        environment = {name: value for name, value in os.environ.items() if name != "KAFKA_HOME"}
        source = jars.JarSource.of(None, None, print, environment)
        jar_path = jars.class_path(jars.KAFKA_4, self._java, source)
        self._class_path = f"{compiled([_SOURCE], jar_path, self._java, source)}:{jar_path}"
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._end()

    def ask(self, request: dict[str, Any], deadline_s: float) -> dict[str, Any] | None:
        """Return the reply; None if it is late, in which case the next request starts another JVM.

        `KafkaAssignors.java` describes requests and replies. Raises LocalClusterError if the runner fails.
        """
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        is_late = threading.Event()

        def give_up() -> None:
            is_late.set()
            process.kill()

        timer = threading.Timer(deadline_s, give_up)
        timer.start()
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        finally:
            timer.cancel()
        if line:
            reply: dict[str, Any] = json.loads(line)
            return reply
        self._end()
        if is_late.is_set():
            return None
        raise LocalClusterError(f"the runner of Kafka's assignors has failed at {request['assignor']}; see above")

    def _start(self) -> subprocess.Popen[str]:
        command = [self._java, *self._java_options, "-cp", self._class_path, "KafkaAssignors"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            with self._process as process:  # closes its pipes and waits
                process.kill()
        self._process = None
