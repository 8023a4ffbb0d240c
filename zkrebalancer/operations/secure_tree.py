"""Turns an open ZooKeeper tree into a secured one while it runs, and finds what is open in it.

Parents are closed before their children, and each list is replaced at the version that was read. So any number of runs,
also at the same time or ended half way, leave a tree that another run completes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from zkrebalancer.operations.nodes import create_missing
from zkrebalancer.protocol import paths, rights
from zkrebalancer.protocol.calls import (
    ABSENT,
    CHANGED,
    Children,
    Content,
    Create,
    Done,
    Get,
    GetRights,
    ListChildren,
    Multi,
    NodeRights,
    Refusal,
    Refused,
    Reply,
    SetContent,
    SetRights,
)
from zkrebalancer.protocol.errors import ConfigurationError, RebalancerError
from zkrebalancer.protocol.rights import Principals, Rights
from zkrebalancer.runtime.zk import BlockingZk

MAX_AT_ONCE = 500
ROOTS = (paths.CONSUMERS, "/brokers", "/cluster")
OWN = "digest:member:own"  # stands for the consumer's own login, whatever it is
_OWN_PREFIX = "digest:member:"
_REFUSED = frozenset({Refusal.NO_NODE, Refusal.NO_AUTH})


class SecurityChangedError(RebalancerError):
    """Another program wrote `/consumers/security` at the same moment."""

    retriable = True


@dataclass(frozen=True, slots=True)
class Finding:
    """A node whose rights are not as they should be."""

    path: str
    excess: Mapping[str, str]  # principal -> rights that it should not have
    missing: Mapping[str, str]
    is_of_group: bool = False  # its consumer registered before it had a login of its own: its group can write it
    unknown: tuple[str, ...] = ()  # coordinators that were not named when its consumer registered: they may not use it


@dataclass(slots=True)
class Outcome:
    """What was found below the roots."""

    nodes: int = 0
    findings: list[Finding] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)  # nodes whose rights may not be read
    left: list[str] = field(default_factory=list)  # nodes that may not be changed


def judge(path: str, found: Rights, who: Principals) -> Finding | None:
    """Return what is wrong with the rights of a node, None if nothing is. Pure."""
    wanted = rights.rights_of(path, who, OWN)
    if wanted is None:
        return None
    is_of_group, unknown = False, tuple[str, ...]()
    if rights.is_of_consumer(path):
        own = [principal for principal in found if principal.startswith(_OWN_PREFIX)]
        is_of_group = len(own) != 1
        if is_of_group:
            wanted = _of_group(path, wanted, who)
        else:  # only a new registration can change its list
            found = {OWN if principal in own else principal: letters for principal, letters in found.items()}
            lacking = _beyond(wanted, found)
            unknown = tuple(name for name in who.coordinators if name in lacking)
            wanted = {**wanted, **{principal: found.get(principal, "") for principal in wanted if principal != OWN}}
    excess, missing = _beyond(found, wanted), _beyond(wanted, found)
    finding = Finding(path, excess, missing, is_of_group, unknown)
    return finding if excess or missing or is_of_group or unknown else None


def wanted_rights(path: str, finding: Finding, who: Principals) -> Rights:
    """Return the rights to give to a node. Pure."""
    wanted = rights.rights_of(path, who, OWN) or {}
    return _of_group(path, wanted, who) if rights.is_of_consumer(path) or finding.is_of_group else wanted


def _of_group(path: str, wanted: Rights, who: Principals) -> Rights:
    """Return the rights at a consumer's node, its own given to its group."""
    own = wanted[OWN]
    members = who.of_group(path.split("/")[3])
    others = {principal: letters for principal, letters in wanted.items() if principal != OWN}
    for principal in members:
        others[principal] = rights.ordered(others.get(principal, "") + own)
    return others


def _beyond(some: Mapping[str, str], others: Mapping[str, str]) -> Rights:
    beyond = {name: "".join(right for right in some[name] if right not in others.get(name, "")) for name in some}
    return {name: letters for name, letters in beyond.items() if letters}


# ---- who is who


def read_principals(zk: BlockingZk) -> tuple[Principals | None, int]:
    """Return who is who and the node's version; None and -1 for an open tree.

    Raises:
        NodeContentError: the node is invalid.
        ZooKeeperRefusedError: it may not be read.

    """
    node = zk.perform(Get(paths.SECURITY), ABSENT)
    return (rights.decode(node.content), node.stat.version) if isinstance(node, Content) else (None, -1)


def changed_principals(
    before: Principals | None, identity: str, roles: Mapping[str, Sequence[str]], groups: Mapping[str, Sequence[str]]
) -> Principals:
    """Return who is who after a change: roles and groups that are given replace the former ones. Pure.

    Raises:
        ConfigurationError: a name is invalid, or `identity`, which makes the change, would not be a coordinator.

    """
    before = before or Principals((identity,))
    lists = {role: tuple(roles.get(role, ())) or getattr(before, role) for role in rights.ROLES}
    merged = {**before.groups, **{group: tuple(names) for group, names in groups.items()}}
    after = rights.checked(Principals(**lists, groups={group: names for group, names in merged.items() if names}))
    if identity not in after.coordinators:
        text = (
            f"{identity} would lock itself out: only coordinators ({', '.join(after.coordinators)}) can secure a tree"
        )
        raise ConfigurationError(text)
    return after


def write_principals(zk: BlockingZk, who: Principals, known_version: int | None = None) -> None:
    """Store who is who, so that every connected client learns of it; creates the nodes above it and the groups' nodes.

    `known_version`: of the node from which `who` was made, as `read_principals` returns it; None: of any.

    Raises:
        SecurityChangedError: another program changed it at the same moment.
        ZooKeeperRefusedError: it may not be written.

    """
    create_missing(zk, paths.CONSUMERS, paths.GROUPS)
    before, version = read_principals(zk)
    if known_version not in {None, version}:
        raise _changed()  # `who` lacks what another program has added since
    content = rights.encode(who)
    if before != who:
        write = SetContent(paths.SECURITY, content, version) if before else Create(paths.SECURITY, content)
        if not isinstance(zk.perform(Multi((write,)), CHANGED), Done):
            raise _changed()
    zk.perform(SetRights(paths.SECURITY, rights.rights_of(paths.SECURITY, who, OWN) or {}))
    _require_principals(zk, who)  # until now, everybody could write it
    for group in who.groups:
        below = [f"{paths.group(group)}/{name}" for name in paths.GROUP_CHILDREN]
        below += [paths.region(group), *(paths.region(group, name) for name in paths.REGION_CHILDREN)]
        for path in (paths.group(group), *below):
            zk.perform(Multi((Create(path),)), {Refusal.NODE_EXISTS})


def _require_principals(zk: BlockingZk, who: Principals) -> None:
    if read_principals(zk)[0] != who:
        raise _changed()


def _changed() -> SecurityChangedError:
    return SecurityChangedError(f"{paths.SECURITY} has just been changed by another program; try again")


# ---- the walk


Report = Callable[[int, int | None], None]


def secure(
    zk: BlockingZk,
    who: Principals,
    report: Report = lambda _count, _total: None,
    known_version: int | None = None,
) -> Outcome:
    """Store who is who, and give all nodes their rights; `known_version`: as for `write_principals`.

    Raises:
        SecurityChangedError: another program changed who is who meanwhile.
        ZooKeeperRefusedError: it may not be written.
        ZooKeeperUnavailableError: the connection broke; another run continues.

    """
    write_principals(zk, who, known_version)
    outcome = walk(zk, who, repair=True, report=report)
    # Until its parent was closed, everybody could delete the node and create another.
    _require_principals(zk, who)
    return outcome


def walk(
    zk: BlockingZk,
    who: Principals,
    *,
    repair: bool,
    report: Report = lambda _count, _total: None,
) -> Outcome:
    """Compare the rights of all nodes, parents first, and replace those that are not as they should be if `repair`.

    `report` receives the number of nodes seen so far, and None: how many there are is not known.

    Raises:
        ZooKeeperUnavailableError: the connection broke; another run continues.

    """
    outcome = Outcome()
    waiting: list[str] = list(ROOTS)
    while waiting:
        below: list[str] = []
        for some in _portions(waiting):
            replies = zk.perform_all([GetRights(path) for path in some], {*_REFUSED, Refusal.MARSHALLING})
            present = [(path, reply) for path, reply in zip(some, replies, strict=True) if not _is_absent(reply)]
            outcome.nodes += len(present)
            report(outcome.nodes, None)
            _judge_all(zk, who, present, outcome, repair=repair)
            below += _children(zk, [path for path, _ in present], outcome)
        waiting = below
    return outcome


def _portions(names: Sequence[str]) -> Iterator[list[str]]:
    left = iter(names)
    while some := list(islice(left, MAX_AT_ONCE)):
        yield some


def _is_absent(reply: Reply) -> bool:
    return reply == Refused(Refusal.NO_NODE)


def _judge_all(
    zk: BlockingZk, who: Principals, present: Sequence[tuple[str, Reply]], outcome: Outcome, *, repair: bool
) -> None:
    changes: list[SetRights] = []
    for path, reply in present:
        if not isinstance(reply, NodeRights):
            outcome.unreadable.append(path)
            continue
        finding = judge(path, dict(reply.rights), who)
        if finding is None:
            continue
        outcome.findings.append(finding)
        if finding.excess or finding.missing:
            changes.append(SetRights(path, wanted_rights(path, finding, who), reply.version))
    if repair and changes:
        replies = zk.perform_all(changes, {*_REFUSED, Refusal.BAD_VERSION})
        refused = [change.path for change, reply in zip(changes, replies, strict=True) if isinstance(reply, Refused)]
        outcome.left += [path for path in refused if path not in outcome.left]


def _children(zk: BlockingZk, parents: Sequence[str], outcome: Outcome) -> list[str]:
    replies = zk.perform_all([ListChildren(path) for path in parents], _REFUSED)
    found: list[str] = []
    for path, reply in zip(parents, replies, strict=True):
        if isinstance(reply, Children):
            found += [f"{path}/{name}" for name in reply.names]
        elif reply == Refused(Refusal.NO_AUTH) and path not in outcome.unreadable:
            outcome.unreadable.append(path)
    return found
