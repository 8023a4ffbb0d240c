"""Damage to nodes by other programs: withheld rights, foreign bytes, deleted records, claimed partitions.

They are context managers, as in `process_faults.py`, and use ZooKeeper directly, not through the proxy. On exit, they
restore rights and contents; the processes have to recover by themselves. Each call is repeated after a lost connection,
because another fault of the same round may kill its server.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

import gevent
from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NoNodeError
from kazoo.handlers.gevent import SequentialGeventHandler
from kazoo.retry import KazooRetry
from kazoo.security import ACL, Id, Permissions

from tests.campaign.company import ASK_INTERVAL_S, Company, Group, NothingToBreakError
from tests.campaign.schedule import Fault
from zkrebalancer.experiments.picture import client_of
from zkrebalancer.protocol import ownership, paths, registration
from zkrebalancer.protocol.ownership import OwnersRecord
from zkrebalancer.protocol.registration import Registration

ROGUE = "rogue"
ROGUE_SESSION_S = 3.0
WORLD = Id("world", "anyone")
JUNK = b'{"version":2}'
COMMAND_WAIT_S = 3.0
REPEAT_DELAY_S, REPEAT_S = 1.0, 120.0  # for a call whose connection was lost
NOTHING = "nothing"  # a topic that does not exist


@contextmanager
def connected(company: Company, session_s: float = 10.0) -> Iterator[KazooClient]:
    """Open a session that belongs to no process of the campaign."""
    handler = SequentialGeventHandler()
    repeat = KazooRetry(max_tries=-1, max_delay=REPEAT_DELAY_S, deadline=REPEAT_S, sleep_func=handler.sleep_func)
    client = KazooClient(company.lab.cluster.zookeeper, timeout=session_s, handler=handler, command_retry=repeat)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


@contextmanager
def deny(company: Company, fault: Fault) -> Iterator[str]:
    """Withhold one right at a node of a group from everybody; restart an agent, so that the right is needed."""
    group = _pick_group(company, fault)
    child, right = fault.detail.split()
    path = f"{paths.group(group.name)}/{child}"
    with connected(company) as client:
        _fault(company, fault, path)
        with company.no_start():
            with suppress(NoNodeError):  # a group has some nodes only once they are needed
                client.retry(client.set_acls, path, [ACL(Permissions.ALL & ~getattr(Permissions, right), WORLD)])
            _replace_agent(company, fault, group)
            yield path
            with suppress(NoNodeError):
                client.retry(client.set_acls, path, [ACL(Permissions.ALL, WORLD)])
        if right == "READ":
            # ZooKeeper drops watch events for clients that may not read the node at that moment (CVE-2024-23944). The
            # leader would notice missed changes only at the next reconciliation, after minutes; a reconnect is sooner.
            company.lab.links.cut(company.leader(group))


@contextmanager
def garble(company: Company, fault: Fault) -> Iterator[str]:
    """Give a node an unknown version; restore it at the end unless it was written meanwhile."""
    group = _pick_group(company, fault)
    with connected(company) as client:
        if fault.detail == "settings":
            path = paths.group(group.name)
        elif fault.detail == "generation":
            path = paths.generation(group.name)
        else:
            path = paths.ids(group.name, _pick_consumer(client, group, fault))
        _fault(company, fault, path)
        whole = None
        with suppress(NoNodeError):
            whole, _stat = client.retry(client.get, path)
            garbled = client.retry(client.set, path, JUNK)
        _replace_agent(company, fault, group)
        yield path
        if whole is not None:
            with suppress(NoNodeError, BadVersionError):
                client.retry(client.set, path, whole, version=garbled.version)


@contextmanager
def delete_owner(company: Company, fault: Fault) -> Iterator[str]:
    """Delete the ownership record of a live member."""
    group = _pick_group(company, fault)
    with connected(company) as client:
        path = paths.owners(group.name, _pick_consumer(client, group, fault))
        _fault(company, fault, path)
        with suppress(NoNodeError):
            client.retry(client.delete, path)
        yield path


@contextmanager
def steal_command(company: Company, fault: Fault) -> Iterator[str]:
    """Delete a command before its acknowledgement, if one is seen in time."""
    group = _pick_group(company, fault)
    with connected(company) as client:
        _fault(company, fault, group.name)
        _replace_agent(company, fault, group)
        if not _delete_a_command(client, group):
            company.not_reached[fault.kind] += 1
        yield group.name


@contextmanager
def forge_claim(company: Company, fault: Fault) -> Iterator[str]:
    """Register a member that claims all partitions of the group's topics and acknowledges nothing."""
    group = _pick_group(company, fault)
    claims = {(topic, number): 0 for topic, count in company.topics_of(group).items() for number in range(count)}
    now = datetime.now(UTC).isoformat()
    about = Registration("static", {NOTHING: 1}, now, ROGUE, ROGUE, int(ROGUE_SESSION_S * 1_000))
    with connected(company, ROGUE_SESSION_S) as client:
        name = f"{ROGUE}-{client.client_id[0]:x}"
        _fault(company, fault, f"{name} in {group.name}")
        record = ownership.encode_owners(OwnersRecord(0, None, claims))

        def register() -> None:
            create = client.transaction()
            create.create(paths.channel(group.name, name))
            create.create(paths.ids(group.name, name), registration.encode(about), ephemeral=True)
            create.create(paths.owners(group.name, name), record, ephemeral=True)
            create.commit_async().get()

        client.retry(register)
        yield name


def _fault(company: Company, fault: Fault, target: str) -> None:
    company.lab.fault(fault.kind, f"{target} {fault.detail}".strip())


def _pick_group(company: Company, fault: Fault) -> Group:
    return company.groups[int(fault.pick * len(company.groups))]


def _pick_consumer(client: KazooClient, group: Group, fault: Fault) -> str:
    consumers = [
        name
        for name in sorted(client.retry(client.get_children, paths.ids(group.name)))
        if client_of(name) in group.members
    ]
    if not consumers:
        raise NothingToBreakError(f"{group.name} has no member")
    return consumers[int(fault.pick * len(consumers))]


def _replace_agent(company: Company, fault: Fault, group: Group) -> None:
    """Kill and restart an agent of the group, if one has no other fault, to give the group work."""
    present = [name for name in group.members if name not in company.missing]
    with suppress(NothingToBreakError), company.hold(present, fault.pick) as name:
        company.kill(name, fault.kind)
        company.start(name)


def _delete_a_command(client: KazooClient, group: Group) -> bool:
    give_up_at = time.monotonic() + COMMAND_WAIT_S
    while time.monotonic() < give_up_at:
        with suppress(NoNodeError):
            for consumer in client.retry(client.get_children, paths.channel(group.name)):
                for command in client.retry(client.get_children, paths.channel(group.name, consumer)):
                    client.retry(client.delete, f"{paths.channel(group.name, consumer)}/{command}")
                    return True
        gevent.sleep(ASK_INTERVAL_S / 10)
    return False
