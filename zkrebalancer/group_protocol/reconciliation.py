"""One member's next step from what it has to its target, as a pure function: give up, then get what is free.

The rules are those of KIP-848: a member that has to give up partitions stays at its epoch until it no longer reports
them. Only then does it move to the target's epoch, with all that no other member holds; the rest follows later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from zkrebalancer.group_protocol.consumer_states import ConsumerMemberState

Partition = tuple[UUID, int]  # topic id, number
Partitions = frozenset[Partition]
NOTHING: Partitions = frozenset()


@dataclass(frozen=True, slots=True)
class Position:
    """A member's progress. It holds `assigned` and `revoking`: no other member may have those.

    `previous_epoch`: a client that reports this epoch missed the last answer.
    """

    epoch: int
    previous_epoch: int
    state: ConsumerMemberState
    assigned: Partitions = NOTHING
    revoking: Partitions = NOTHING

    @property
    def held(self) -> Partitions:
        """Return the partitions that no other member may have."""
        return self.assigned | self.revoking

    def has_reached(self, target_epoch: int) -> bool:
        """Whether nothing is left to do for this target."""
        return self.state is ConsumerMemberState.STABLE and self.epoch == target_epoch


NEW = Position(0, 0, ConsumerMemberState.STABLE)


def next_position(
    position: Position,
    target_epoch: int,
    target: Partitions,
    is_free: Callable[[Partition], bool],
    owned: Partitions | None,
) -> Position:
    """Return the member's position after a heartbeat.

    `is_free`: whether no other member holds a partition. `owned`: what the client reports; None if it reports nothing.
    """
    if position.has_reached(target_epoch) or position.state in {ConsumerMemberState.AWAY, ConsumerMemberState.GONE}:
        return position
    epoch = position.epoch
    if position.state is ConsumerMemberState.UNREVOKED:
        if _still_owns(owned, position.revoking):
            return position
        epoch += 1
    assigned = position.assigned & target
    revoking = position.assigned - assigned
    if revoking and _still_owns(owned, revoking):
        return _moved(position, epoch, ConsumerMemberState.UNREVOKED, assigned, revoking)
    gained = frozenset(partition for partition in target - assigned if is_free(partition))
    is_complete = assigned | gained == target
    state = ConsumerMemberState.STABLE if is_complete else ConsumerMemberState.UNRELEASED
    return _moved(position, target_epoch, state, assigned | gained, NOTHING)


def _still_owns(owned: Partitions | None, revoking: Partitions) -> bool:
    return owned is None or not owned.isdisjoint(revoking)


def _moved(
    position: Position, epoch: int, state: ConsumerMemberState, assigned: Partitions, revoking: Partitions
) -> Position:
    # The previous epoch belongs to the answer that the client may have missed, however often it asks again.
    previous_epoch = position.previous_epoch if epoch == position.epoch else position.epoch
    return Position(epoch, previous_epoch, state, assigned, revoking)
