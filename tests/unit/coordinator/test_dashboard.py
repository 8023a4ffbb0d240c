"""Each query of the dashboard runs against Debian's Prometheus, and finds something in a fleet that does its work."""

from __future__ import annotations

import json
import math
import re
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator

import pytest

from tests.support.deadlines import WITHIN_S
from tests.support.promtool import find_prometheus
from tests.unit.coordinator.test_monitoring import AGENT, HEALTHY, A, C, queries
from zkrebalancer.localcluster.ports import HOST, free_ports

MINUTES = 15
OTHERS = {  # what the dashboard asks for beyond what the alerts do
    f'{C}groups{{state="idle"}}': "9x90",
    f"{C}members": "3x90",
    f"{C}partitions": "12x90",
    f"{C}commands_pending": "0x90",
    f"{C}zookeeper_round_trip_seconds": "0.001x90",
    f'{C}rebalance_settle_seconds_bucket{{le="0.1"}}': "0+2x90",
    f'{C}rebalance_settle_seconds_bucket{{le="+Inf"}}': "0+3x90",
    f"{A}lost_partitions_total{AGENT}": "0+1x90",
}


def values(text: str) -> list[float]:
    """Return values in promtool's notation: `1x3` is 1, four times; `0+2x3` is 0 2 4 6."""
    found: list[float] = []
    for part in text.split():
        start, _, count = part.partition("x")
        first, _, step = start.partition("+")
        found += [float(first) + number * float(step or 0) for number in range(int(count or 0) + 1)]
    return found


def openmetrics(now_s: int) -> str:
    """Return the last minutes of a healthy fleet."""
    lines = []
    for series, text in {**HEALTHY, **OTHERS}.items():
        labelled = series if "{" in series else f"{series}{{}}"
        named = labelled.replace("{", '{instance="a",').replace(",}", "}")
        for minute, value in enumerate(values(text)[:MINUTES]):
            lines.append(f"{named} {value} {now_s - 60 * (MINUTES - 1 - minute)}")
    return "\n".join([*lines, "# EOF", ""])


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """Start a server that has seen a healthy fleet; yield its address, and when it saw the fleet last."""
    folder = tmp_path_factory.mktemp("prometheus")
    found = find_prometheus()
    if found is None:
        pytest.skip("Prometheus is not installed, and Debian's cannot be downloaded")
    now_s = int(time.time()) - 60
    (folder / "past").write_text(openmetrics(now_s))
    (folder / "empty.yaml").write_text("{}\n")
    fill = (found.with_name("promtool"), "tsdb", "create-blocks-from", "openmetrics", folder / "past", folder / "data")
    subprocess.run(fill, capture_output=True, check=True)
    (port,) = free_ports(1)
    options: dict[str, object] = {"config.file": folder / "empty.yaml", "storage.tsdb.path": folder / "data"}
    options |= {"web.listen-address": f"{HOST}:{port}", "storage.tsdb.retention.time": "1d"}
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen([found, *(f"--{name}={value}" for name, value in options.items())], stderr=log)
    try:
        address = f"http://{HOST}:{port}"
        give_up_at = time.monotonic() + WITHIN_S
        while not is_ready(address):
            assert server.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < give_up_at, (folder / "log").read_text()
            time.sleep(0.05)
        yield address, now_s
    finally:
        server.terminate()
        server.wait()


def is_ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/-/ready", timeout=WITHIN_S):  # noqa: S310  # our own server
            return True
    except OSError:
        return False


def ask(prometheus: tuple[str, int], query: str) -> list[float]:
    """Return the values that a query finds."""
    address, at_s = prometheus
    asked = urllib.parse.urlencode({"query": query, "time": at_s})
    try:
        with urllib.request.urlopen(f"{address}/api/v1/query?{asked}", timeout=WITHIN_S) as answer:  # noqa: S310
            document = json.load(answer)
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{query}: {error.read().decode()}") from None
    return [float(one["value"][1]) for one in document["data"]["result"]]


def test_each_query_finds_numbers(prometheus: tuple[str, int]) -> None:
    """Misspell a label in a query of the dashboard, or aggregate by `le` in a histogram no more."""
    for query in queries():
        found = ask(prometheus, query)
        assert found, f"{query} finds nothing"
        assert all(map(math.isfinite, found)), f"{query}: {found}"


def test_queries_say_what_happens(prometheus: tuple[str, int]) -> None:
    known = {query: ask(prometheus, query) for query in queries()}
    assert known["sum(zkrebalancer_coordinator_leader)"] == [1]
    (rebalances,) = (of for query, of in known.items() if re.match(r"sum by \(cause, outcome\)", query))
    assert max(rebalances) == pytest.approx(15)  # three a minute, in five minutes
    settle = [of[0] for query, of in known.items() if "settle_seconds" in query]
    assert 0 < settle[0] <= settle[-1] <= 0.1
