"""The states of a member of a consistent region, and the one table of legal transitions."""

from __future__ import annotations

from enum import Enum


class RegionState(Enum):
    """The phase of a member of a region; each comment also says what ends it."""

    INITIALIZED = "initialized"  # nothing runs yet; ends when its threads start, or when it subscribes
    EVENT_THREAD_STARTED = "event-thread-started"  # of a classic client, which has a thread of its own for events
    SUBSCRIBED = "subscribed"  # reads from where its group is; fetched with the first record
    RECORDS_FETCHED = "records-fetched"  # its state depends on records; pending when it loses any, or has to reset
    RESET_PENDING = "reset-pending"  # no record, seek or checkpoint before the reset; complete when it has sought
    RESET_COMPLETE = "reset-complete"  # waits, polling with a brake, until all are; fetched with the first record


TRANSITIONS: dict[RegionState, frozenset[RegionState]] = {
    RegionState.INITIALIZED: frozenset({RegionState.EVENT_THREAD_STARTED, RegionState.SUBSCRIBED}),
    RegionState.EVENT_THREAD_STARTED: frozenset({RegionState.SUBSCRIBED}),
    RegionState.SUBSCRIBED: frozenset({RegionState.RECORDS_FETCHED, RegionState.RESET_PENDING}),
    RegionState.RECORDS_FETCHED: frozenset({RegionState.RESET_PENDING}),
    RegionState.RESET_PENDING: frozenset({RegionState.RESET_COMPLETE}),
    RegionState.RESET_COMPLETE: frozenset({RegionState.RECORDS_FETCHED, RegionState.RESET_PENDING}),
}


class InvalidTransitionError(Exception):
    """A bug: a member attempted a transition that the table lacks."""
