"""Checks after every step: a coordinator's counters are right, something will end every wait, and books do not grow."""

from __future__ import annotations

from collections import Counter

from consumer_agent.membership.start import Start
from consumer_agent.membership.state_machine import StateMachine
from tests.simulation.promises import BrokenPromiseError
from zkrebalancer.protocol.registration import STATIC
from zkrebalancer.rebalance import topics
from zkrebalancer.rebalance.coordinator import Coordinator
from zkrebalancer.rebalance.election import ElectionState
from zkrebalancer.rebalance.group import Group
from zkrebalancer.rebalance.states import GroupState

MAX_INDEXED = 10_000  # bound for the partitions that a group holds; a dozen exist


def check_machine(machine: Coordinator, computing: set[str]) -> None:
    """Check a connected machine.

    Raises:
        BrokenPromiseError: a counter is wrong, or nothing will end a wait.

    """
    if machine.leadership is None or machine.coordinator_elector.state is ElectionState.RESIGNED:
        return  # a coordinator that resigns does not retry calls that were refused because another one leads
    waiting = Counter(awaited.owner for awaited in machine.scheduler.awaited.values())
    waiting.update(owner for owner, _name in machine.scheduler.due)
    if not machine.subscriptions.are_topics_known and not waiting[topics.OWNER]:
        raise BrokenPromiseError("stalled", "the topics are not read, and nothing is awaited")
    for name, group in machine.groups.items():
        if group._scheduler._scheduler is not machine.scheduler:
            continue  # broken on purpose
        if name not in machine.leadership.gone and not _is_served(machine, group, waiting[name], computing):
            raise BrokenPromiseError("stalled", f"group {name} is {group.state.value}, and nothing is awaited")
        if group.state is not GroupState.LOADING:
            _check_accounts(group)
    _check_interest(machine)


def _is_served(machine: Coordinator, group: Group, waiting: int, computing: set[str]) -> bool:
    if group.name in machine.groups_to_load:
        return True
    if group.state is GroupState.QUEUED:
        return group.name in machine.rebalance_request_queue
    if group.state is GroupState.MOVING and group.view.settings.starts_paused:
        return True  # until an operator ends the pause
    return bool(waiting) or (group.state is GroupState.PLANNING and group.name in computing)


def _check_accounts(group: Group) -> None:
    view = group.view
    held = Counter(
        (topic, number) for topic, holders in view._holders.items() for number, names in holders.items() for _ in names
    )
    if sum(map(len, view._holders.values())) > MAX_INDEXED:
        raise BrokenPromiseError("cost", f"group {group.name} has an index of {len(held)} held partitions")
    counted = Counter(partition for partitions in view._held.values() for partition in partitions)
    if held != counted:
        raise BrokenPromiseError("accounts", f"group {group.name}: held {counted - held}, indexed {held - counted}")
    if not group._moving.outstanding <= view.members.keys():
        raise BrokenPromiseError("accounts", f"group {group.name} waits for {group._moving.outstanding}")


def check_books(machine: StateMachine) -> None:
    """Check that an agent knows offsets only of what it owns or is about to start.

    Raises:
        BrokenPromiseError: another partition is in a book.

    """
    member = machine.member
    if member is None or member.departure is not None or member.ending is not None:
        return
    book, kafka_book = member.lane.book, member.lane.kafka_book
    starting = member.work.partitions if isinstance(member.work, Start) else frozenset()
    others = (book.stored.keys() | book.nodes | kafka_book.stored.keys()) - member.lane.record.partitions.keys()
    topics_known = {topic for topic, _number in member.lane.record.partitions.keys() | starting}
    if others - starting or (book.missing_topics | kafka_book.marks.keys()) - topics_known:
        raise BrokenPromiseError("accounts", f"{member.name} has offsets of {others - starting}, which it does not own")


def _check_interest(machine: Coordinator) -> None:
    """Check that each topic lists the groups whose members name it, with the right counts."""
    wanted: dict[str, Counter[str]] = {}
    for name, group in machine.groups.items():
        for member in group.view.members.values() if group.state is not GroupState.LOADING else ():
            registration = member.registration
            if registration is not None and registration.pattern == STATIC:
                for topic in registration.subscription:
                    wanted.setdefault(topic, Counter())[name] += 1
    known = {topic: counter for topic, counter in machine.subscriptions.consumer_groups_per_topic.items() if counter}
    if known != wanted:
        raise BrokenPromiseError("accounts", f"groups per topic are {known}, members want {wanted}")
