"""A group as tables for people and as a JSON document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from rich.table import Table

from zkrebalancer.observe.inspection import GroupReport, MemberReport
from zkrebalancer.operations.group_lag import PartitionLag
from zkrebalancer.protocol import fields
from zkrebalancer.protocol.registration import stop_limit_ms

MAX_NAMES_SHOWN = 20  # in one cell of a table
Lag = Mapping[fields.TopicPartition, PartitionLag]
LagTimes = Mapping[fields.TopicPartition, float | None]  # seconds; None: unknown


def summary(report: GroupReport) -> dict[str, object]:
    """Return the line of a group in the list."""
    return {
        "group": report.name,
        "state": report.state,
        "members": len(report.members),
        "partitions_owned": len(report.owned()),
        "generation": report.generation,
        "mode": report.settings.mode,
        "strategy": report.settings.strategy,
        "frozen": report.settings.frozen,
        "problems": report.problems.lines(),
        "problem_counts": dict(report.problems.counts),
    }


def document(report: GroupReport, lag: Lag | None, times: LagTimes | None) -> dict[str, object]:
    """Return a group with everything that was read of it."""
    return {
        **summary(report),
        "settings": asdict(report.settings),
        "evicted": report.evicted,
        "consumers": [
            {
                "consumer": member.consumer,
                "registration": asdict(member.registration) if member.registration else None,
                "threads": fields.threads_to_ranges(member.owners.partitions) if member.owners else None,
                "generation": member.owners.generation if member.owners else None,
                "pending_commands": member.pending_commands,
                "drained": _is_drained(report, member),
            }
            for member in report.members
        ],
        "offsets": [
            {"topic": topic, "partition": partition, "offset": offset}
            for (topic, partition), offset in sorted(report.offsets.items())
        ]
        if lag is None
        else [
            {"topic": tp[0], "partition": tp[1], **asdict(known), "lag": known.lag, **_lag_s(times, tp)}
            for tp, known in lag.items()
        ],
    }


def state_table(report: GroupReport) -> Table:
    """Return the state and the settings."""
    table = Table("property", "value")
    shown = {**summary(report), **asdict(report.settings), "evicted": _some(report.evicted)}
    for key, value in shown.items():
        if key not in {"problems", "problem_counts"}:
            table.add_row(key, str(value))
    return table


def _some(names: list[str]) -> str:
    more = [f"{len(names) - MAX_NAMES_SHOWN} more"] if len(names) > MAX_NAMES_SHOWN else []
    return ", ".join([*names[:MAX_NAMES_SHOWN], *more]) or "-"


def members_table(report: GroupReport) -> Table:
    """Return one line for each consumer."""
    table = Table(
        "consumer",
        "host",
        "rack",
        "instance id",
        "capacity",
        "subscription",
        "partitions",
        "pending",
        "generation",
        "stops within",
    )
    allowed_ms = report.settings.rebalance_timeout_ms
    for member in report.members:
        known = member.registration
        table.add_row(
            member.consumer,
            known.host if known else "unreadable",
            (known.rack if known else None) or "-",
            (known.instance_id if known else None) or "-",
            _capacity(report, member),
            f"{known.pattern}: {', '.join(known.subscription)}" if known else "-",
            _ranges(frozenset(member.owners.partitions)) if member.owners else "unreadable",
            str(member.pending_commands),
            str(member.owners.generation) if member.owners else "-",
            f"{stop_limit_ms(known.stop_timeout_ms if known else None, allowed_ms) / 1_000:g} s",
        )
    return table


def _is_drained(report: GroupReport, member: MemberReport) -> bool:
    known = member.registration
    return known is not None and report.settings.drains(member.consumer, known.instance_id, known.host)


def _capacity(report: GroupReport, member: MemberReport) -> str:
    capacity = f"{member.registration.capacity:g}" if member.registration else "-"
    return f"{capacity}, drained" if _is_drained(report, member) else capacity


def _lag_s(times: LagTimes | None, partition: fields.TopicPartition) -> dict[str, float | None]:
    return {} if times is None else {"lag_s": times[partition]}


def partitions_table(report: GroupReport, with_offsets: bool, lag: Lag | None, times: LagTimes | None) -> Table:
    """Return one line for each partition that has an owner or an offset."""
    columns = ["offset"] if with_offsets else []
    columns += ["offset in Kafka", "log end", "lag"] if lag is not None else []
    columns += ["lag s"] if times is not None else []
    table = Table("topic", "partition", "consumer thread", *columns)
    owned = report.owned()
    for topic, partition in sorted(owned.keys() | report.offsets.keys() | (lag or {}).keys()):
        row: list[object] = [topic, partition, owned.get((topic, partition))]
        if lag is not None:
            known = lag[topic, partition]
            row += [known.offset, known.offset_in_kafka, known.log_end_offset, known.lag]
            row += _lag_s(times, (topic, partition)).values()
        elif with_offsets:
            row.append(report.offsets.get((topic, partition)))
        table.add_row(*("-" if value is None else str(value) for value in row))
    return table


def _ranges(partitions: frozenset[fields.TopicPartition]) -> str:
    return "; ".join(
        f"{topic} " + ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
        for topic, ranges in fields.topics_to_ranges(partitions).items()
    )
