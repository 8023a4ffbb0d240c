"""Kafka's own command-line tools and Java client, fetched like the servers.

Each tool is a class, in a jar that the servers do not need: `kafka-consumer-groups.sh` runs
`org.apache.kafka.tools.consumer.group.ConsumerGroupCommand`.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from zkrebalancer.experiments.java_programs import OPTIONS, compiled
from zkrebalancer.localcluster import jars
from zkrebalancer.localcluster.java import find_java
from zkrebalancer.localcluster.server import child_environment

SUMS = {
    jars.KAFKA_3: "3e6844711c3f5c9148f76ac96dfbf1de0aeeba11249e142e084b6de68e0ed05e",
    jars.KAFKA_4: "4eb9a7fbfd63badfd8d1a677aa2d54b47b2b2d442ff7d68fd223972afea1954c",
}
CONSUMER_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
GROUPS = "org.apache.kafka.tools.GroupsCommand"  # of 4.x
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
HEAP_MB = 128
_SOURCES = Path(__file__).parents[1] / "integration" / "java"
_LOGGING = _SOURCES / "log4j.properties"
_READER = _SOURCES / "GroupReader.java"


def _source() -> jars.JarSource:
    return jars.JarSource.of(None, None, lambda _line: None)


def _class_path(version: str) -> str:
    """Return the class path of the tools of this version."""
    java, source = find_java(), _source()
    sums = {f"org.apache.kafka-kafka-tools-{version}.jar": SUMS[version]}
    module = jars.ivy_module(("org.apache.kafka", "kafka-tools", version), transitive=False)
    folder = jars.fetched(f"Kafka tools {version}", module, sums, java, source)
    return f"{folder}/*:{jars.class_path(version, java, source)}"


def _java(class_path: str, main: str) -> list[str]:
    return [find_java(), f"-Xmx{HEAP_MB}m", *OPTIONS, f"-Dlog4j.configuration=file:{_LOGGING}", "-cp", class_path, main]


def command(version: str, tool: str, *arguments: object) -> list[str]:
    """Return the command line of a tool."""
    return [*_java(_class_path(version), tool), *map(str, arguments)]


def reader_command(version: str, topic: str, settings: dict[str, object]) -> list[str]:
    """Return the command line of a consumer that uses this version of the Java client."""
    path = jars.class_path(version, find_java(), _source())
    classes = compiled([_READER], path, find_java(), _source())
    return [*_java(f"{classes}:{path}", "GroupReader"), topic, *(f"{name}={value}" for name, value in settings.items())]


class Tools:
    """Runs tools, one after the other in one JVM."""

    def __init__(self, version: str, log: Path) -> None:
        """Start the JVM; `log` gets its standard error."""
        path = _class_path(version)
        classes = compiled([_SOURCES / "Tools.java"], path, find_java(), _source())
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                _java(f"{classes}:{path}", "Tools"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=child_environment(),
            )

    def run(self, tool: str, *arguments: object) -> str:
        """Run a tool to its end and return its output, errors included; fails the test if the tool fails."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join([tool, *map(str, arguments)]) + "\n")
        self._process.stdin.flush()
        lines: list[str] = []
        for line in self._process.stdout:
            if line.startswith("exit "):
                assert line == "exit 0\n", "".join(lines)
                break
            lines.append(line)
        else:
            raise AssertionError("".join(lines))
        return "".join(lines)

    def close(self) -> None:
        """End the JVM."""
        self._process.kill()
        self._process.communicate()
