"""What `pipeline run` costs: time and memory for millions of events, against plain Python that makes the same facts.

`python -m tests.benchmarks.pipeline 1 5 20` (millions). The events are of one group of 20 members and 240 partitions;
one has a third of all deliveries; every few thousand events a partition moves, and now and then a member dies and
what it had not committed is delivered again. Spark gets two cores and 3 GB of heap, to stay below 4 GB altogether.

The plain side is the checker, which reads the files once, and a histogram of delays; it makes fewer tables.
"""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import psutil

from zkrebalancer.observe.checker import Run
from zkrebalancer.observe.reading import EventFiles, Problems

MEMBERS = 20
PARTITIONS = 240
HOT_SHARE = 0.33
RECORDS = 10  # in each delivery
EVENTS_PER_MOVE = 5_000
EVENTS_PER_CRASH = 100_000
COMMIT_EVERY = 8  # deliveries of a partition
STEP_US = 50  # between two events
SAMPLE_S = 0.2
HEAP = "3g"
BIN = math.log(1.01)


class World:
    """Writes events as members would, each into a file of its own."""

    def __init__(self, folder: Path) -> None:
        self._files: dict[str, TextIO] = {}
        self._folder = folder
        self._chance = random.Random(1)
        self._now_us = 1_000_000
        self._owners = [f"m-{number % MEMBERS}" for number in range(PARTITIONS)]
        self._next = [0] * PARTITIONS
        self._committed = [0] * PARTITIONS
        self.written = 0

    def write(self, process: str, kind: str, rest: str) -> None:
        """Write one event; `rest` is JSON."""
        if process not in self._files:
            self._files[process] = (self._folder / f"{process}.jsonl").open("w")
        self._now_us += STEP_US
        self._files[process].write(
            f'{{"ts_us":{1_700_000_000_000_000 + self._now_us},"mono_us":{self._now_us},"host":"h",'
            f'"process":"{process}","kind":"{kind}","group":"g","generation":1,"cause_id":null,{rest}}}\n'
        )
        self.written += 1

    def fetcher(self, kind: str, member: str, partition: int, more: str = "") -> None:
        """Write a start or a stop of one partition."""
        rest = f'"member":"{member}","topic":"t","partitions":[{partition}],"positions":[{self._next[partition]}]{more}'
        self.write(member.rsplit("~", 1)[0], kind, rest)

    def deliver(self, partition: int) -> None:
        """Produce and deliver some records, and commit now and then."""
        owner, first = self._owners[partition], self._next[partition]
        where = f'"topic":"t","partition":{partition}'
        offsets = f'{where},"first_offset":{first},"last_offset":{first + RECORDS - 1}'
        delays = [self._chance.randrange(500, 20_000) for _ in range(RECORDS)]
        self.write("producer", "produced", offsets)
        rest = f'"member":"{owner}",{offsets},"count":{RECORDS},"delays_us":{delays}'
        self.write(owner.rsplit("~", 1)[0], "delivered", rest)
        self._next[partition] += RECORDS
        if (self._next[partition] // RECORDS) % COMMIT_EVERY == 0:
            self.commit(partition)

    def commit(self, partition: int) -> None:
        """Commit what was delivered."""
        owner, offset = self._owners[partition], self._next[partition]
        rest = f'"member":"{owner}","topic":"t","partition":{partition},"offset":{offset}'
        self.write(owner.rsplit("~", 1)[0], "committed", rest)
        self._committed[partition] = offset

    def move(self, partition: int) -> None:
        """Hand a partition over in good order."""
        self.fetcher("fetcher_stopped", self._owners[partition], partition, ',"reason":"revoked"')
        self.commit(partition)
        self._owners[partition] = self._chance.choice(sorted(set(self._owners)))
        self.fetcher("fetcher_started", self._owners[partition], partition)

    def crash(self) -> None:
        """Let a member die and come back under a new name; it begins at what was committed."""
        dead = self._chance.choice(sorted(set(self._owners)))
        self.write("coordinator", "ownership_ended", f'"member":"{dead}","reason":"expired"')
        reborn = f"{dead.rsplit('~', 1)[0]}~{self.written}"
        for partition in [number for number, owner in enumerate(self._owners) if owner == dead]:
            self._owners[partition], again = reborn, self._next[partition]
            self._next[partition] = self._committed[partition]
            self.fetcher("fetcher_started", reborn, partition)
            while self._next[partition] < again:
                self.deliver_again(partition)

    def deliver_again(self, partition: int) -> None:
        """Deliver records that were produced before."""
        owner, first = self._owners[partition], self._next[partition]
        offsets = f'"topic":"t","partition":{partition},"first_offset":{first},"last_offset":{first + RECORDS - 1}'
        rest = f'"member":"{owner}",{offsets},"count":{RECORDS},"delays_us":[{",".join(["1000"] * RECORDS)}]'
        self.write(owner.rsplit("~", 1)[0], "delivered", rest)
        self._next[partition] += RECORDS

    def run(self, events: int) -> None:
        """Write about that many events."""
        for partition, owner in enumerate(self._owners):
            self.fetcher("fetcher_started", owner, partition)
        next_move, next_crash = EVENTS_PER_MOVE, EVENTS_PER_CRASH
        while self.written < events:
            self.deliver(0 if self._chance.random() < HOT_SHARE else self._chance.randrange(1, PARTITIONS))
            if self.written >= next_move:
                self.move(self._chance.randrange(PARTITIONS))
                next_move += EVENTS_PER_MOVE
            if self.written >= next_crash:
                self.crash()
                next_crash += EVENTS_PER_CRASH
        for file in self._files.values():
            file.close()


def plain(folder: Path) -> dict[str, int]:
    """Make the facts in plain Python, in one pass."""
    run, delays = Run(Problems()), Counter[int]()
    for event in EventFiles(folder, Problems()):
        run.apply(event)
        if event["kind"] == "delivered":
            delays.update(int(math.log(delay) / BIN) for delay in event["delays_us"])
    verdict = run.verdict(torn_lines=0)
    names = ("produced", "delivered", "lost", "duplicated", "duplicated_outside_crash", "out_of_order", "overlaps")
    return {name: getattr(verdict, name) for name in names} | {"delays": delays.total()}


def measured(command: list[str]) -> tuple[float, float, dict[str, object]]:
    """Run a command; return seconds, the highest memory of it and all that it started in MiB, and what it printed."""
    began, peak, is_over = time.perf_counter(), [0], threading.Event()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def sample() -> None:
        while not is_over.wait(SAMPLE_S):
            try:
                root = psutil.Process(process.pid)
                tree = [root, *root.children(recursive=True)]
                peak[0] = max(peak[0], sum(each.memory_info().rss for each in tree))
            except psutil.NoSuchProcess:
                continue

    watcher = threading.Thread(target=sample)
    watcher.start()
    out, _errors = process.communicate()
    is_over.set()
    watcher.join()
    if process.returncode:
        sys.exit(f"{command} failed")
    return time.perf_counter() - began, peak[0] / (1 << 20), json.loads(out)


def compare(millions: float, report: Callable[[str], None]) -> None:
    """Measure both sides on that many events, and compare what they say."""
    with tempfile.TemporaryDirectory(prefix="zkrebalancer-bench-") as scratch:
        folder, out = Path(scratch, "events"), Path(scratch, "out")
        folder.mkdir()
        World(folder).run(int(millions * 1e6))
        size_mb = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
        load = os.getloadavg()[0]
        command = [sys.executable, "-m", "zkrebalancer.cli.main", "pipeline", "run", "--events", str(folder)]
        command += ["--out", str(out), "--master", "local[2]", "--memory", HEAP, "--json"]
        spark_s, spark_mib, document = measured(command)
        plain_s, plain_mib, said = measured([sys.executable, "-m", "tests.benchmarks.pipeline", "--plain", str(folder)])
        runs = document["runs"]
        assert isinstance(runs, list)
        same = all(runs[0][name] == said[name] for name in said if name != "delays")
        report(
            f"{millions:g} million events, {size_mb:,.0f} MB: Spark {spark_s:.0f} s, {spark_mib:,.0f} MiB; plain "
            f"{plain_s:.0f} s, {plain_mib:,.0f} MiB; {plain_s / spark_s:.1f} times faster; "
            f"answers {'equal' if same else 'DIFFER'}; load before {load:.1f}"
        )


def main() -> None:
    """Measure the sizes that the arguments name."""
    if sys.argv[1:2] == ["--plain"]:
        print(json.dumps(plain(Path(sys.argv[2]))))
        return
    for millions in map(float, sys.argv[1:] or ("1", "5", "20")):
        compare(millions, lambda line: print(line, flush=True))


if __name__ == "__main__":
    main()
