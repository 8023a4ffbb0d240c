"""Faults of coordinators, agents and their links: context managers that break on entry and repair on exit.

Each yields its target. A fault that did not take effect counts in `Company.not_reached`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random

import gevent
from gevent.event import Event

from tests.campaign.company import ASK_INTERVAL_S, COORDINATORS, Company, Group, NothingToBreakError
from tests.campaign.frames import Direction
from tests.campaign.links import Way
from tests.campaign.schedule import REGISTRATIONS, Fault
from zkrebalancer.localcluster import faults
from zkrebalancer.localcluster.errors import LocalClusterError
from zkrebalancer.protocol.errors import RebalancerError

LOST_IN_A_ROW = 3
FAKETIME_LIBRARIES = (
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
)


def find_faketime() -> str | None:
    """Return the library that shifts a process's wall clock, None if it is not installed."""
    return next((library for library in FAKETIME_LIBRARIES if Path(library).exists()), None)


@contextmanager
def kill_agent(company: Company, fault: Fault) -> Iterator[str]:
    """Kill an agent; it returns under the same client id."""
    with company.hold(company.agents(), fault.pick) as name:
        company.kill(name, fault.kind)
        yield name
        company.start(name)


@contextmanager
def kill_agent_at_step(company: Company, fault: Fault) -> Iterator[str]:
    """Restart an agent that will kill itself at a step, and another one to cause work."""
    with company.hold(company.agents(), fault.pick) as name:
        company.kill(name, fault.kind)
        company.start(name, {"CONSUMER_AGENT_FAILPOINT": fault.detail})
        company.doom(name)
        _restart_agent(company, fault.pick, company.group_of(name).members)
        yield name
        company.end_doomed(name, fault.kind)


@contextmanager
def kill_coordinator(company: Company, fault: Fault) -> Iterator[str]:
    """Kill a coordinator, the leader or a standby."""
    with company.hold(list(COORDINATORS), fault.pick) as name:
        company.kill(name, fault.kind)
        yield name
        company.start(name)


@contextmanager
def kill_leader_at_step(company: Company, fault: Fault) -> Iterator[str]:
    """Make a coordinator lead that will kill itself at a step; restart an agent to give it work."""
    with company.hold(list(COORDINATORS), fault.pick) as name:
        _let_lead(company, fault, name, {"ZKREBALANCER_FAILPOINT": fault.detail})
        company.doom(name)
        _restart_agent(company, fault.pick, company.agents())
        yield name
        company.end_doomed(name, fault.kind)


@contextmanager
def restart_coordinator(company: Company, fault: Fault) -> Iterator[str]:
    """Stop a coordinator cleanly."""
    with company.hold(list(COORDINATORS), fault.pick) as name:
        company.lab.fault(fault.kind, name)
        company.stop(name)
        yield name
        company.start(name)


@contextmanager
def suspend(company: Company, fault: Fault) -> Iterator[str]:
    """Suspend an agent or the leader."""
    names = [company.some_leader(fault.pick)] if fault.kind == "suspend-leader" else company.agents()
    with company.hold([name for name in names if name not in company.missing], fault.pick) as name:
        company.watcher.abandoned(name)
        company.lab.freeze(name)
        yield name
        company.watcher.returned(name)
        company.lab.thaw(name)


@contextmanager
def expire(company: Company, fault: Fault) -> Iterator[str]:
    """End a process's session at ZooKeeper; the process learns of it when it reconnects."""
    with _held(company, fault) as name:
        company.lab.fault(fault.kind, name)
        _end_session(company, name)
        yield name


@contextmanager
def cut(company: Company, fault: Fault) -> Iterator[str]:
    """Cut the connections of one process, or of all at once; they may reconnect."""
    if fault.kind == "cut-all":
        company.lab.fault(fault.kind, "all")
        for name in (*COORDINATORS, *company.agents()):
            company.lab.links.cut(name)
        yield "all"
        return
    with _held(company, fault) as name:
        company.lab.fault(fault.kind, name)
        company.lab.links.cut(name)
        yield name


@contextmanager
def break_link(company: Company, fault: Fault) -> Iterator[str]:
    """Refuse the connections of a process, or drop or delay all its messages."""
    ways: dict[str, Way] = {"refuse": "refused", "silence": "silent", "slow": "slow"}
    with _held(company, fault) as name:
        company.lab.fault(fault.kind, name)
        company.lab.links.break_(name, ways[fault.kind.partition("-")[0]], int(fault.detail or 0))
        yield name
        company.lab.links.break_(name, "open")


@contextmanager
def lose(company: Company, fault: Fault) -> Iterator[str]:
    """Give a process work and lose some of its requests, or of the replies; each loss also cuts the connection."""
    what: Direction = "reply" if fault.kind.startswith("lose-reply") else "request"
    # Partitions of a static member wait for it, so its restart would give the others of its group no work.
    restless = [name for group in company.groups if not group.is_static for name in group.members]
    with company.hold(
        [company.some_leader(fault.pick)] if fault.kind.endswith("-leader") else restless, fault.pick
    ) as name:
        company.lab.fault(fault.kind, name)
        before = company.lab.links.lose(name, what, fault.detail, LOST_IN_A_ROW)
        if fault.detail == REGISTRATIONS:
            _end_session(company, name)
        else:
            agents = company.agents() if name in COORDINATORS else company.group_of(name).members
            _restart_agent(company, fault.pick, agents)
        yield name
        if company.lab.links.lose_nothing(name) == before:
            company.not_reached[fault.kind] += 1


@contextmanager
def jump_clock(company: Company, fault: Fault) -> Iterator[str]:
    """Make a coordinator lead, let its wall clock jump, and at the end back; its other clocks do not jump."""
    library = find_faketime()
    if library is None:
        raise NothingToBreakError("libfaketime is not installed")
    with company.hold(list(COORDINATORS), fault.pick) as name:
        offset = company.lab.cluster.directory / f"{name}.clock"
        offset.write_text("+0\n")
        environment = {"LD_PRELOAD": library, "FAKETIME_TIMESTAMP_FILE": str(offset)}
        environment |= {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "FAKETIME_CACHE_DURATION": "1"}
        _let_lead(company, fault, name, environment)
        offset.write_text(f"{fault.detail}\n")
        _restart_agent(company, fault.pick, company.agents())
        yield name
        offset.write_text("+0\n")


@contextmanager
def join(company: Company, fault: Fault) -> Iterator[str]:
    """Add an agent to the smallest group."""
    if len(company.agents()) >= company.max_agents:
        raise NothingToBreakError("the campaign has its maximum of agents")
    name = company.join(min(company.groups, key=lambda group: len(group.members)))
    company.note_step(fault.kind, name)
    yield name


@contextmanager
def leave(company: Company, fault: Fault) -> Iterator[str]:
    """Remove an agent."""
    with company.hold(company.dispensable_agents(), fault.pick) as name:
        company.note_step(fault.kind, name)
        company.leave(name)
        yield name


@contextmanager
def churn(company: Company, fault: Fault) -> Iterator[str]:
    """Restart a group's agents one by one, so that other faults hit it during a rebalance."""
    group = company.groups[int(fault.pick * len(company.groups))]
    company.note_step(fault.kind, group.name)
    is_over = Event()
    restarts = gevent.spawn(_restart_agents, company, group, Random(fault.pick), is_over)
    yield group.name
    is_over.set()
    problem = restarts.get()
    if problem is not None:
        raise problem


def _restart_agents(company: Company, group: Group, random: Random, is_over: Event) -> RebalancerError | None:
    """Restart agents until the fault ends; return the error if one ends it earlier."""
    try:
        while not is_over.wait(ASK_INTERVAL_S):
            _restart_agent(company, random.random(), group.members)
    except RebalancerError as error:
        return error  # to be raised in the greenlet that ends the fault
    return None


@contextmanager
def switch_mode(company: Company, fault: Fault) -> Iterator[str]:
    """Switch a group between the two modes."""
    group = company.groups[int(fault.pick * len(company.groups))]
    company.note_step(fault.kind, group.name)
    company.switch_mode(group)
    yield group.name


@contextmanager
def _held(company: Company, fault: Fault) -> Iterator[str]:
    """Pick the leader or an agent, depending on the kind."""
    names = [company.some_leader(fault.pick)] if fault.kind.endswith("-leader") else company.agents()
    with company.hold([name for name in names if name not in company.missing], fault.pick) as name:
        yield name


def _end_session(company: Company, name: str) -> None:
    session = company.lab.links.session(name)
    if session is None or company.is_without_quorum:
        raise NothingToBreakError(f"{name} has no session that could be ended")
    try:
        faults.expire_session(company.lab.cluster.zookeeper, session.session_id, session.password)
    except LocalClusterError as error:  # another fault has its servers
        raise NothingToBreakError(str(error)) from None


def _let_lead(company: Company, fault: Fault, name: str, environment: dict[str, str]) -> None:
    """Restart a coordinator with an environment, then the others, so that it leads and they are standbys."""
    company.lab.fault(fault.kind, name)
    company.stop(name)
    company.start(name, environment)
    if name in company.missing:
        return
    program = company.lab.programs[name]
    events = company.lab.events / f"{name}-{program.pid}.jsonl"
    company.lab.wait_for(f"{name} at work", partial(_is_there_or_over, company, name, events))
    others = [other for other in COORDINATORS if other != name]
    company.stop(*others)
    for other in others:
        company.start(other)


def _is_there_or_over(company: Company, name: str, events: Path) -> bool:
    return events.exists() or not company.lab.programs[name].is_running


def _restart_agent(company: Company, pick: float, agents: list[str]) -> None:
    """Restart one of these agents cleanly, if one has no fault: its group has to rebalance twice."""
    present = [name for name in agents if name not in company.missing]
    with suppress(NothingToBreakError), company.hold(present, pick) as name:
        company.stop(name)
        company.start(name)
