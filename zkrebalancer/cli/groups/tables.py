"""A group as tables for people and as a JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from rich.table import Table

from zkrebalancer.cli.groups.lags import Lags
from zkrebalancer.cli.tables import setting, utc
from zkrebalancer.observe.inspection import GroupReport, MemberReport
from zkrebalancer.observe.service_level import Level
from zkrebalancer.protocol import fields
from zkrebalancer.protocol.registration import stop_limit_ms

MAX_NAMES_SHOWN = 20  # in one cell of a table


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


def document(report: GroupReport, lags: Lags | None, levels: Sequence[Level]) -> dict[str, object]:
    """Return a group with everything that was read of it."""
    return {
        **summary(report),
        "settings": asdict(report.settings),
        "last_change": None if report.view.last_change is None else asdict(report.view.last_change),
        "evicted": report.evicted,
        "consumers": [
            {
                "consumer": member.consumer,
                "registration": member.registration._asdict() if member.registration else None,
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
        if lags is None
        else [
            {"topic": tp[0], "partition": tp[1], **asdict(known), "lag": known.lag, **lags.of(tp)}
            for tp, known in lags.lag.items()
        ],
        "slo": [asdict(level) for level in levels],
        **({} if lags is None or lags.verdicts is None else {"verdict": lags.worst}),
    }


def state_table(report: GroupReport) -> Table:
    """Return the state and the settings."""
    table = Table("property", "value")
    shown = {**summary(report), **asdict(report.settings), "evicted": _some(report.evicted)}
    shown["last change"] = _last_change(report)
    for key, value in shown.items():
        if key not in {"problems", "problem_counts"}:
            table.add_row(key, setting(key, value))
    return table


def _last_change(report: GroupReport) -> str:
    change = report.view.last_change
    return "-" if change is None else f"{utc(change.at_ms)} UTC, {change.by}: {change.what}"


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


def partitions_table(report: GroupReport, with_offsets: bool, lags: Lags | None) -> Table:
    """Return one line for each partition that has an owner or an offset."""
    columns = ["offset"] if with_offsets else []
    columns += ["offset in Kafka", "log end", "lag"] if lags is not None else []
    columns += ["lag s"] if lags is not None and lags.times is not None else []
    columns += ["verdict"] if lags is not None and lags.verdicts is not None else []
    table = Table("topic", "partition", "consumer thread", *columns)
    owned = report.owned()
    for topic, partition in sorted(
        owned.keys() | report.offsets.keys() | (lags.lag.keys() if lags is not None else set())
    ):
        row: list[object] = [topic, partition, owned.get((topic, partition))]
        if lags is not None:
            known = lags.lag[topic, partition]
            row += [known.offset, known.offset_in_kafka, known.log_end_offset, known.lag]
            row += lags.of((topic, partition)).values()
        elif with_offsets:
            row.append(report.offsets.get((topic, partition)))
        table.add_row(*("-" if value is None else str(value) for value in row))
    return table


def _ranges(partitions: frozenset[fields.TopicPartition]) -> str:
    return "; ".join(
        f"{topic} " + ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
        for topic, ranges in fields.topics_to_ranges(partitions).items()
    )
