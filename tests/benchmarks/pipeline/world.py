"""Writes any number of events, like those of a group whose processes append to one file each.

The group has 20 members and 240 partitions, one of which gets a third of all deliveries. Every few thousand events a
partition moves; now and then a member dies, and its uncommitted records are delivered again. There are a few steps, and
samples of each process's cost, as in an experiment.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TextIO

MEMBERS = 20
PARTITIONS = 240
HOT_SHARE = 0.33
RECORDS = 10  # per delivery
EVENTS_PER_MOVE = 5_000
EVENTS_PER_CRASH = 100_000
COMMIT_EVERY = 8  # deliveries of a partition
STEP_US = 50  # between two events
EVENTS_PER_SECOND = 1_000_000 // STEP_US
STEPS = ("before", "first", "second", "third", "end")


class World:
    """Writes the events of all members, each into a file of its own."""

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
        """Write one event; `rest` is JSON text."""
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
        """Commit the delivered records."""
        owner, offset = self._owners[partition], self._next[partition]
        rest = f'"member":"{owner}","topic":"t","partition":{partition},"offset":{offset}'
        self.write(owner.rsplit("~", 1)[0], "committed", rest)
        self._committed[partition] = offset

    def move(self, partition: int) -> None:
        """Move a partition: stop, commit, start."""
        self.fetcher("fetcher_stopped", self._owners[partition], partition, ',"reason":"revoked"')
        self.commit(partition)
        self._owners[partition] = self._chance.choice(sorted(set(self._owners)))
        self.fetcher("fetcher_started", self._owners[partition], partition)

    def crash(self) -> None:
        """Let a member die and return under a new name; it starts at the committed offsets."""
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

    def sample(self) -> None:
        """Write the cost of each process so far."""
        for target in ("coordinator", "producer", *(f"m-{number}" for number in range(MEMBERS))):
            rest = f'"role":"member","target":"{target}","cpu_us":{self._now_us // 10},"rss_bytes":50000000'
            self.write("lab", "sampled", rest)

    def step(self, number: int) -> None:
        """Begin a step."""
        self.write("lab", "step", f'"name":"{STEPS[number]}","target":"nobody","number":{number}')

    def run(self, events: int) -> None:
        """Write about `events` events."""
        for partition, owner in enumerate(self._owners):
            self.fetcher("fetcher_started", owner, partition)
        next_move, next_crash, next_sample, step = EVENTS_PER_MOVE, EVENTS_PER_CRASH, 0, 0
        while self.written < events:
            if self.written >= events * step // (len(STEPS) - 1):
                self.step(step)
                step += 1
            if self.written >= next_sample:
                self.sample()
                next_sample += EVENTS_PER_SECOND
            self.deliver(0 if self._chance.random() < HOT_SHARE else self._chance.randrange(1, PARTITIONS))
            if self.written >= next_move:
                self.move(self._chance.randrange(PARTITIONS))
                next_move += EVENTS_PER_MOVE
            if self.written >= next_crash:
                self.crash()
                next_crash += EVENTS_PER_CRASH
        self.step(step)
        for file in self._files.values():
            file.close()
