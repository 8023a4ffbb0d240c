"""Drains: which names and hosts are added to a group's settings, or removed from them.

The coordinator gives the partitions of drained members to others. The settings outlive leaders and members.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from zkrebalancer.observe import inspection
from zkrebalancer.observe.inspection import GroupReport
from zkrebalancer.operations.configure import Altered
from zkrebalancer.operations.evict import NoSuchConsumerError, first_names
from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.runtime.zk import BlockingZk

_NAME_OF_A_PROCESS = re.compile(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")  # `<client id>-<uuid>`


class UnknownHostError(RebalancerError):
    """A member may be on the host, or not: its registration cannot be read."""


class NotDrainedError(RebalancerError):
    """A member or host that the group does not drain."""


def draining(members: Sequence[str]) -> Altered:
    """Return the change that drains members, named by name or instance id; it raises NoSuchConsumerError."""

    def altered(report: GroupReport) -> GroupSettings:
        known = _names(report)
        for name in members:
            if name not in known:
                raise NoSuchConsumerError(f"group {report.name} has no member {name:.80}; it has {first_names(known)}")
        kept = {name for name in report.settings.drained_members if name in known or not _is_of_a_process(name)}
        return replace(report.settings, drained_members=_sorted(kept.union(members)))

    return altered


def undraining(members: Sequence[str]) -> Altered:
    """Return the change that ends the drain of members, or of all and of all hosts if none is named."""

    def altered(report: GroupReport) -> GroupSettings:
        if not members:
            return replace(report.settings, drained_members=(), drained_hosts=())
        drained = report.settings.drained_members
        for name in members:
            if name not in drained:
                raise NotDrainedError(f"group {report.name} does not drain {name:.80}; {_drained(report.settings)}")
        return replace(report.settings, drained_members=_sorted({*drained} - {*members}))

    return altered


def draining_host(host: str) -> Altered:
    """Return the change that drains a host, whether or not it has members now."""
    return lambda report: replace(report.settings, drained_hosts=_sorted({*report.settings.drained_hosts, host}))


def undraining_host(host: str) -> Altered:
    """Return the change that ends the drain of a host; it raises NotDrainedError."""

    def altered(report: GroupReport) -> GroupSettings:
        drained = report.settings.drained_hosts
        if host not in drained:
            raise NotDrainedError(
                f"group {report.name} does not drain the host {host:.80}; {_drained(report.settings)}"
            )
        return replace(report.settings, drained_hosts=_sorted({*drained} - {host}))

    return altered


def groups_of_host(zk: BlockingZk, host: str, *, is_drain: bool) -> tuple[list[str], list[RebalancerError]]:
    """Return the groups that have members on the host, or with `is_drain` false those that drain it.

    Also return why other groups cannot be told: they, or the host of a member of theirs, may not be read. A group whose
    settings cannot be read may drain any host.

    Raises:
        NoSuchConsumerError, NotDrainedError: there is none, and all groups were read.
        ZooKeeperRefusedError: the groups may not be listed.

    """
    reports, unread = inspection.read_groups(zk)
    refused: list[RebalancerError] = [*unread]
    if is_drain:
        found = [report.name for report in reports if host in hosts(report)]
        refused += [_doubt(report) for report in reports if _is_doubtful(report, host)]
    else:
        found = [report.name for report in reports if host in report.settings.drained_hosts or _is_unclear(report)]
    if not (found or refused) and is_drain:
        known = {name for report in reports for name in hosts(report) if name is not None}
        raise NoSuchConsumerError(f"no group has members on {host:.80}; members are on {first_names(known)}")
    if not (found or refused):
        raise NotDrainedError(f"no group drains the host {host:.80}")
    return found, refused


def _is_unclear(report: GroupReport) -> bool:
    return report.problems.counts["settings"] > 0


def hosts(report: GroupReport) -> set[str | None]:
    """Return the hosts of a group's members; None: that of some member cannot be read."""
    return {member.registration.host if member.registration else None for member in report.members}


def _is_doubtful(report: GroupReport, host: str) -> bool:
    """Whether it is not known if a group has members on the host, and it does not drain that anyway."""
    found = hosts(report)
    return None in found and host not in found and host not in report.settings.drained_hosts


def _doubt(report: GroupReport) -> RebalancerError:
    names = first_names(member.consumer for member in report.members if not member.registration)
    return UnknownHostError(f"group {report.name} (members that cannot be read may be there: {names})")


def _names(report: GroupReport) -> set[str]:
    """Return the names and the instance ids of a group's members, also of static members that are away."""
    known = [member.registration for member in report.members if member.registration]
    instances = {registration.instance_id for registration in known if registration.instance_id}
    return {member.consumer for member in report.members} | instances | report.view.statics.keys()


def _is_of_a_process(name: str) -> bool:
    """Whether it names one registration, and so never comes back, unlike an instance id."""
    return _NAME_OF_A_PROCESS.search(name) is not None


def _sorted(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(names))


def _drained(settings: GroupSettings) -> str:
    members, hosts = first_names(settings.drained_members), first_names(settings.drained_hosts)
    return f"it drains the members: {members}; and the hosts: {hosts}"
