"""The fate of each partition's records in one row: produced, delivered, lost, duplicated, out of order.

Only offsets that were delivered more than once are looked at closely, in atoms: ranges whose offsets all have the same
history. A redelivery is excused if, since the delivery before it, its consumer crashed, or was repositioned to its
offset or below. Each crash or reposition excuses one redelivery.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from zkrebalancer.pipeline.facts.of_partition import Segment, late, order
from zkrebalancer.pipeline.facts.one_pass import Row

DELIVERY, DOUBTFUL, EXCUSES = "delivery", "doubtful", "excuses"
COUNTS = ("produced", "delivered", "lost", "duplicated", "duplicated_outside_crash", "out_of_order", "unheld")
_KEY = "run string, group string, topic string, partition int"
SCHEMAS = {  # of the tables, as Spark's DDL; counts of `delivery` are records, but for the last two
    DELIVERY: f"{_KEY}, " + ", ".join(f"{name} bigint" for name in COUNTS),
    DOUBTFUL: f"{_KEY}, member string, era int, mono_us bigint, block bigint, row bigint, begin bigint, end bigint, "
    "started_us bigint, position bigint, bucket bigint",
    EXCUSES: f"{_KEY}, member string, started_us bigint, excused_us bigint, committed bigint",
}
SEGMENT, SINGLE, EXCUSE, COMMIT, LEG, STRETCH = "segment", "single", "excuse", "commit", "leg", "stretch"
Leg = tuple[str, int]  # member and start


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a delivery whose offsets were delivered more than once."""

    begin: int
    end: int
    at: tuple[int, int, int]  # time, block and row
    excused_us: int | None
    committed: int

    def history(self, offset: int) -> Iterator[tuple[int, bool, int, int]]:
        """Iterate over what it adds to the history of an offset: (time, whether it is an excuse, block, row)."""
        yield self.at[0], False, *self.at[1:]
        if self.excused_us is not None and offset >= self.committed:
            yield self.excused_us, True, *self.at[1:]


@dataclass(slots=True)
class _Book:
    """What one group did with the partition, until its topic was deleted."""

    rows: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))

    def counts(self) -> dict[str, int]:
        """Return the counts of COUNTS."""
        segments = ((each["begin"], each["end"], each["due"], each["given"]) for each in self.rows[SEGMENT])
        return {
            **of_segments(segments),
            "duplicated_outside_crash": self._unexcused(),
            "out_of_order": sum(self._late()),
            "unheld": sum(each["events"] for each in self.rows[STRETCH] if each["started_us"] is None),
        }

    def _late(self) -> Iterator[int]:
        """Iterate over numbers of deliveries that begin below what their leg had reached."""
        of_legs = defaultdict(list)
        for each in self.rows[SINGLE]:
            of_legs[each["member"], each["started_us"]].append(each)
        for stretch, reached in late(self.rows[STRETCH]):
            if stretch["end"] <= reached:
                yield stretch["events"]
                continue
            first, last = order(stretch["began"]), order(stretch["last"])
            singles = of_legs[stretch["member"], stretch["started_us"]]
            yield sum(first <= order(each["at"]) <= last and each["begin"] < reached for each in singles)

    def _unexcused(self) -> int:
        """Return how many records were delivered again without an excuse."""
        pieces = sorted(self._pieces(), key=lambda each: each.begin)
        seeks = [leg for leg in self.rows[LEG] if leg["started_us"] > leg["held_us"]]
        cuts = {cut for each in pieces for cut in (each.begin, each.end)}
        cuts.update(each.committed for each in pieces if each.begin < each.committed < each.end)
        cuts.update(leg["position"] for leg in seeks)
        count, place, active = 0, 0, list[_Piece]()
        for begin, end in pairwise(sorted(cuts)):
            active = [each for each in active if each.end > begin]
            while place < len(pieces) and pieces[place].begin <= begin:
                active.append(pieces[place])
                place += 1
            if active:
                history = [entry for each in active for entry in each.history(begin)]
                history += [(leg["started_us"], True, 0, 0) for leg in seeks if leg["position"] <= begin]
                history.sort()
                again = sum(not before[1] and not after[1] for before, after in pairwise(history))
                count += again * (end - begin)
        return count

    def _pieces(self) -> Iterator[_Piece]:
        doubled = sorted((each["begin"], each["end"]) for each in self.rows[SEGMENT] if each["given"] > 1)
        ends = [end for _begin, end in doubled]
        crashes = self._crashes()
        for each in self.rows[SINGLE]:
            excused = crashes.get((each["member"], each["started_us"]))
            excused_us, committed = (None, 0) if excused is None else excused
            at = (each["at"]["mono_us"], each["at"]["block"], each["at"]["row"])
            for place in range(bisect_right(ends, each["begin"]), len(doubled)):
                begin, end = doubled[place]
                if begin >= each["end"]:
                    break
                yield _Piece(max(begin, each["begin"]), min(end, each["end"]), at, excused_us, committed)

    def _crashes(self) -> dict[Leg, tuple[int, int]]:
        """Return when a crash excused each leg, and the offset from which on."""
        held = {(each["member"], each["held_us"]): each for each in self.rows[EXCUSE]}
        found = {}
        for leg in self.rows[LEG]:
            excuse = held.get((leg["member"], leg["held_us"]))
            if excuse is not None:
                found[leg["member"], leg["started_us"]] = excuse["excused_us"], excuse["committed"]
        return found


class Fates:
    """The tables of one partition of a group."""

    def __init__(self, run: str, group: str, topic: str, partition: int) -> None:
        """Begin before the first row."""
        self.rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in SCHEMAS}
        self._key = (run, group, topic, partition)
        self._books: dict[int, _Book] = defaultdict(_Book)  # by era
        self._excuses: list[Row] = []
        self._committed: dict[Leg, int] = {}

    def apply(self, row: Row) -> None:
        """Handle a row, whose kind is `what`."""
        if row["what"] == EXCUSE:
            self._excuses.append(row)
        elif row["what"] == COMMIT:
            self._committed[row["member"], row["held_us"]] = row["committed"]
        else:
            self._books[row["era"]].rows[row["what"]].append(row)
            if row["what"] == SINGLE:
                of_delivery = (row["era"], *order(row["at"]), row["begin"], row["end"], row["started_us"])
                self.rows[DOUBTFUL].append((*self._key, row["member"], *of_delivery, row["position"], row["bucket"]))

    def finish(self) -> None:
        """Complete the tables; `delivery` has no row if no offset was due or delivered."""
        for each in self._excuses:
            each["committed"] = self._committed.get((each["member"], each["held_us"]), each["position"])
            of_crash = (each["held_us"], each["excused_us"], each["committed"])
            self.rows[EXCUSES].append((*self._key, each["member"], *of_crash))
        if not any(book.rows[SEGMENT] for book in self._books.values()):
            return
        totals = dict.fromkeys(COUNTS, 0)
        for book in self._books.values():
            book.rows[EXCUSE] = self._excuses
            for name, count in book.counts().items():
                totals[name] += count
        self.rows[DELIVERY].append((*self._key, *totals.values()))


def of_segments(segments: Iterable[Segment]) -> dict[str, int]:
    """Return the counts of COUNTS that follow from how often each offset was produced and delivered."""
    found = dict.fromkeys(COUNTS[:4], 0)
    for begin, end, due, given in segments:
        found["produced"] += (end - begin) * (due > 0)
        found["delivered"] += (end - begin) * (given > 0)
        found["lost"] += (end - begin) * (due > 0 and not given)
        found["duplicated"] += (end - begin) * max(0, given - 1)
    return found
