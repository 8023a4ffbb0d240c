"""Records of the faults and rounds of a campaign, and its outcome; pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

from tests.campaign.schedule import KINDS
from tests.campaign.verdict import InterimVerdict
from zkrebalancer.observe.checker import Verdict

RECORD_COUNTS = ("produced", "delivered", "lost", "duplicated", "duplicated_outside_crash", "out_of_order")


@dataclass(slots=True)
class FaultRecord:
    """One fault that was caused; seconds since the campaign's beginning."""

    kind: str
    target: str
    detail: str
    began_s: float
    ended_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """Overlapping faults, the longest time that a partition had no owner, and the time to settle."""

    faults: tuple[FaultRecord, ...]
    without_owner_s: float
    settled_s: float


@dataclass(frozen=True, slots=True)
class KindSummary:
    """Figures of all rounds with a kind of fault, which include the other faults of these rounds."""

    title: str
    count: int
    not_reached: int
    without_owner_s_median: float
    without_owner_s_max: float
    settled_s_median: float
    settled_s_max: float


@dataclass(slots=True)
class CampaignRecord:
    """The faults and rounds of a campaign so far."""

    rounds: list[RoundRecord] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)  # kind -> how often there was no target
    not_reached: Counter[str] = field(default_factory=Counter)  # kind -> faults that did not take effect
    checks: list[InterimVerdict] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def summaries(self) -> list[KindSummary]:
        """Return a summary for each kind that occurred, in the order of the kinds."""
        return [
            self._summary(kind, rounds)
            for kind in KINDS
            if (rounds := [each for each in self.rounds if any(fault.kind == kind for fault in each.faults)])
        ]

    def _summary(self, kind: str, rounds: list[RoundRecord]) -> KindSummary:
        return KindSummary(
            KINDS[kind].title,
            len(rounds),
            self.not_reached[kind],
            *_median_and_max(each.without_owner_s for each in rounds),
            *_median_and_max(each.settled_s for each in rounds),
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """A campaign and the checker's verdict; `folder`: the kept events and logs, if any."""

    record: CampaignRecord
    verdict: Verdict | None
    seed: int
    versions: dict[str, str]
    left_out: dict[str, str]  # kind -> why it is impossible on this machine
    elapsed_s: float
    check_s: float
    folder: str | None = None

    @property
    def problems(self) -> list[str]:
        """Every broken promise."""
        found = [*self.record.problems, *(self.verdict.problems if self.verdict else ["there is no verdict"])]
        return list(dict.fromkeys(found))  # problems found during the run are found again at the end

    def document(self) -> dict[str, object]:
        """Return what `--json` prints."""
        verdict = self.verdict
        faults = [{**asdict(fault), "round": number} for number, fault in self._numbered_faults()]
        return {
            "ok": not self.problems,
            "problems": self.problems,
            "seed": self.seed,
            "versions": self.versions,
            "elapsed_s": round(self.elapsed_s, 1),
            "rounds": [
                {"without_owner_s": each.without_owner_s, "settled_s": each.settled_s} for each in self.record.rounds
            ],
            "faults": faults,
            "kinds": [asdict(summary) for summary in self.record.summaries()],
            "skipped": dict(self.record.skipped),
            "left_out": self.left_out,
            "rebalances": len(verdict.rebalances) if verdict else 0,
            "records": {name: getattr(verdict, name) for name in RECORD_COUNTS} if verdict else {},
            "overlaps": verdict.overlaps if verdict else 0,
            "checks": [asdict(check) for check in self.record.checks],
            "check_s": round(self.check_s, 2),
            "folder": self.folder,
        }

    def _numbered_faults(self) -> list[tuple[int, FaultRecord]]:
        return [(number, fault) for number, each in enumerate(self.record.rounds, 1) for fault in each.faults]


def _median_and_max(values: Iterable[float]) -> tuple[float, float]:
    known = list(values)
    return round(statistics.median(known), 2), round(max(known), 2)
