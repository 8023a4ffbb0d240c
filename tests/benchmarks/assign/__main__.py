"""Assignment at scale, side by side: `python -m tests.benchmarks.assign [--members 100 1000] [--picture FILE] …`.

Times this project's strategies and Kafka's own assignors on the same groups, one after another, and prints the tables
of `docs/benchmarks.md`. The whole run takes about half an hour.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.assign.costs import cost_tables
from tests.benchmarks.assign.kafka import KafkaAssignors
from tests.benchmarks.assign.picture import draw
from tests.benchmarks.assign.points import ALIKE, MEMBERS, OVERLAPPING, TOPICS, Point, grid
from tests.benchmarks.assign.timing import DEADLINE_S, KAFKAS, OURS, WARM_UP_MS, KafkasTimes, Result, measure_ours

PICTURE = Path(__file__).parents[3] / "docs" / "benchmarks-assign.svg"
SHOWN = ("sticky", "uniform", "client cooperative-sticky", "range", "server range", "client range")
Row = dict[str, Result | None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, nargs="+", default=list(MEMBERS))
    parser.add_argument(
        "--topics", type=int, nargs="+", default=list(TOPICS), help="how many; the last two overlap too"
    )
    parser.add_argument(
        "--warm-up-ms", type=int, default=WARM_UP_MS, help="for each of Kafka's assignors at each point"
    )
    parser.add_argument("--picture", type=Path, default=PICTURE)
    arguments = parser.parse_args()
    with KafkaAssignors() as kafka:
        times = KafkasTimes(kafka, arguments.warm_up_ms)
        rows = {point: measure(point, times) for point in grid(arguments.members, arguments.topics)}
        points = overlapping_points(max(arguments.members), arguments.topics[-2:])
        overlapping = {point: measure(point, times) for point in points}
    print(speed_table(rows))
    print(processor_table(rows))
    print(overlapping_table(overlapping))
    print(quality_lines({**rows, **overlapping}))
    print(cost_tables(max(arguments.members)))
    draw(rows, arguments.picture)
    print(f"picture: {arguments.picture}")


def overlapping_points(members: int, topics: Sequence[int]) -> list[Point]:
    """Return groups of half the grid's largest size, with overlapping subscriptions and, for comparison, equal ones."""
    return [
        Point(members // 2, 50, topic_count, subscribe, joins)
        for topic_count in topics
        for subscribe in (ALIKE, OVERLAPPING)
        for joins in (False, True)
    ]


def measure(point: Point, times: KafkasTimes) -> Row:
    row: Row = {name: measure_ours(point, strategy) for name, strategy in OURS.items()}
    row |= {assignor: times.measure(point, assignor) for assignor in KAFKAS}
    print(
        f"{point}: {', '.join(f'{name} {cell(result)}' for name, result in row.items())}", file=sys.stderr, flush=True
    )
    return row


def speed_table(rows: dict[Point, Row]) -> str:
    lines = [
        "| members | partitions | topics | subscribe | change | " + " | ".join(SHOWN) + " | uniform / sticky |",
        "|---" * (len(SHOWN) + 6) + "|",
    ]
    for point, row in rows.items():
        change = "one joins" if point.joins else "full"
        shown = " | ".join(cell(row[name]) for name in SHOWN)
        lines.append(
            f"| {point.members:,} | {point.partitions:,} | {point.topic_count:,} | {point.subscribe} | {change} "
            f"| {shown} | {ratio(row['uniform'], row['sticky'])} |"
        )
    return "\n".join(lines) + "\n"


def processor_table(rows: dict[Point, Row]) -> str:
    """Compare CPU time at the largest size; unlike wall time, it is valid on a busy machine."""
    names = ("sticky", "uniform", "client cooperative-sticky")
    lines = ["| partitions | topics | subscribe | change | " + " | ".join(names) + " |", "|---" * 7 + "|"]
    largest = max(point.partitions for point in rows)
    for point, row in rows.items():
        if point.partitions == largest:
            change = "one joins" if point.joins else "full"
            shown = " | ".join(
                "-" if (result := row[name]) is None else shown_ms(result.processor_ms) for name in names
            )
            lines.append(f"| {point.partitions:,} | {point.topic_count:,} | {point.subscribe} | {change} | {shown} |")
    return "\n".join(lines) + "\n"


def overlapping_table(rows: dict[Point, Row]) -> str:
    names = ("sticky", "uniform", "client cooperative-sticky")
    lines = ["| members | topics | subscribe | change | " + " | ".join(names) + " |", "|---" * 7 + "|"]
    for point, row in rows.items():
        change = "one joins" if point.joins else "full"
        shown = " | ".join(cell(row[name]) for name in names)
        lines.append(f"| {point.members:,} | {point.topic_count:,} | {point.subscribe} | {change} | {shown} |")
    return "\n".join(lines) + "\n"


def cell(result: Result | None) -> str:
    """Return "best / median" in milliseconds."""
    if result is None:
        return f"> {DEADLINE_S:.0f} s"
    return f"{shown_ms(result.best_ms)} / {shown_ms(result.median_ms)}"


def shown_ms(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def ratio(slower: Result | None, faster: Result | None) -> str:
    """Return the ratio of the best times."""
    if slower is None or faster is None:
        return "-"
    return f"{slower.best_ms / faster.best_ms:.1f}"


def quality_lines(rows: dict[Point, Row]) -> str:
    """Compare balance and kept partitions of sticky with those of Kafka's two balancing assignors."""
    lines = []
    for theirs in ("uniform", "client cooperative-sticky"):
        compared = worse = equal = 0
        for row in rows.values():
            # In a cooperative assignor's first round, moved partitions are withheld, so it is compared with ours.
            mine = row["sticky" if theirs == "uniform" else "cooperative_sticky"]
            other = row[theirs]
            if mine is None or other is None:
                continue
            compared += 1
            worse += (mine.squares, -mine.kept) > (other.squares, -other.kept)
            equal += (mine.squares, mine.kept) == (other.squares, other.kept)
        lines.append(
            f"- against {theirs}: {compared} points, worse in {worse}, the same in {equal}, better in the rest"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
