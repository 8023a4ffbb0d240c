"""Folders of invented experiment runs: one member of a group is killed, and another one takes over."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECOND_US = 1_000_000
ENDS_S = 20
KILLED_S = 8
SENT_EVERY_US = 500_000
USUAL_DELAY_US = 5_000


@dataclass(frozen=True)
class FakeRun:
    """A run whose partitions have no consumer for `pause_ms` after one of `members` was killed."""

    protocol: str
    pause_ms: int
    seed: int = 1
    scenario: str = "crash"
    members: int = 3
    partitions: int = 6
    trusted: bool = True
    broker: str = "kafka-3.9"
    unsettled_ms: int = 0
    settings: str = "default"

    def write(self, out: Path) -> Path:
        """Write it below `out` and return its folder."""
        name = f"{self.settings}-m{self.members}-p{self.partitions}-s{self.seed}"
        folder = out / self.broker / self.protocol / self.scenario / name
        (folder / "events").mkdir(parents=True)
        lines = sorted(self._events(), key=lambda event: event["mono_us"])
        text = "".join(json.dumps(event) + "\n" for event in lines)
        (folder / "events" / "run-1.jsonl").write_text(text)
        result = {
            "protocol": self.protocol, "scenario": self.scenario, "settings": self.settings,
            "members": self.members, "partitions": self.partitions, "seed": self.seed, "versions": {"kafka": "3.9.1"},
            "machine": {"processors": 2, "load_before": 0.5 + self.seed}, "complete": True, "trusted": self.trusted,
            "details": {
                "member": {"group.protocol": self.protocol},
                "broker": {"kind": self.broker},
                "group": None,
                "members_per_process": 5,
            },
            "doubts": [] if self.trusted else ["the machine stalled"],
        }  # fmt: skip
        (folder / "result.json").write_text(json.dumps(result))
        return folder

    def _owner(self, partition: int, at_us: int) -> str | None:
        """Return a partition's owner; the first member is killed, and the second one takes over."""
        member = partition % self.members
        if member > 0 or at_us < KILLED_S * SECOND_US:
            return f"m{member}"
        return "m1" if at_us >= KILLED_S * SECOND_US + self.pause_ms * 1_000 else None

    def _events(self) -> list[dict[str, Any]]:
        killed_us, over_us = KILLED_S * SECOND_US, KILLED_S * SECOND_US + self.pause_ms * 1_000
        orphans = [partition for partition in range(self.partitions) if partition % self.members == 0]
        unsettled = {"unsettled_ms": self.unsettled_ms} if self.unsettled_ms else {}
        first = {"name": self.scenario, "protocol": self.protocol, "members": self.members, "seed": self.seed}
        events = [
            _event(0, "scenario", **first),
            _event(5 * SECOND_US, "step", name="before", target="", number=1),
            _event(killed_us, "step", name="kill-member", target="m0", number=2),
            _event(killed_us, "ownership_ended", member="m0", reason="killed"),
            _event(
                over_us, "fetcher_started", member="m1", topic="t", partitions=orphans, positions=[0] * len(orphans)
            ),
            _event(ENDS_S * SECOND_US, "step", name="end", target="", number=3, **unsettled),
        ]
        for member in range(self.members):
            own = [partition for partition in range(self.partitions) if partition % self.members == member]
            held = {"topic": "t", "partitions": own, "positions": [0] * len(own)}
            events.append(_event(SECOND_US, "fetcher_started", member=f"m{member}", **held))
        for partition in range(self.partitions):
            events += self._records(partition)
        return events

    def _records(self, partition: int) -> list[dict[str, Any]]:
        events = []
        place = {"topic": "t", "partition": partition}
        for offset, sent_us in enumerate(range(2 * SECOND_US, 18 * SECOND_US, SENT_EVERY_US)):
            received_us = sent_us + USUAL_DELAY_US
            if self._owner(partition, received_us) is None:
                received_us = KILLED_S * SECOND_US + self.pause_ms * 1_000 + USUAL_DELAY_US
            span = {**place, "first_offset": offset, "last_offset": offset}
            delivered = {
                "member": self._owner(partition, received_us),
                "count": 1,
                "delays_us": [received_us - sent_us],
            }
            events.append(_event(sent_us, "produced", **span))
            events.append(_event(received_us, "delivered", **span, **delivered))
        return events


def _event(mono_us: int, kind: str, **fields: Any) -> dict[str, Any]:
    common = {"ts_us": mono_us, "mono_us": mono_us, "host": "h", "process": "run-1", "kind": kind}
    group = None if kind == "produced" else "group"
    return {**common, "group": group, "generation": None, "cause_id": None, **fields}
