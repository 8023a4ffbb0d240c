"""What a coordinator shows of itself: progress and health, for probes, systemd and people. It only reads."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

import gevent

from zkrebalancer.protocol import calls
from zkrebalancer.protocol.calls import Call, Get, Refused, Replied
from zkrebalancer.protocol.shards import shard_of
from zkrebalancer.rebalance import census
from zkrebalancer.rebalance.all_shards import AllShards
from zkrebalancer.rebalance.census import Figures
from zkrebalancer.rebalance.coordinator import Coordinator
from zkrebalancer.rebalance.effects import Emit, Event, Tick
from zkrebalancer.rebalance.election import ElectionState
from zkrebalancer.rebalance.group import Group
from zkrebalancer.rebalance.reconciling import RECONCILIATION
from zkrebalancer.runtime import clock
from zkrebalancer.runtime.vitals import STATE_LOG, Health, Vitals

BEAT_CALL = -1  # the id of the call that asks whether ZooKeeper answers; the core's ids are positive
MAX_LOOKS = 1_000  # groups, or members and topics, that are counted before other greenlets have their turn
TURN_S = 0.001  # a pause of 0 would let other greenlets run, but read no socket
REGION_ROUNDS = {
    f"region_{kind}_{outcome}": (kind, outcome)
    for kind in ("checkpoint", "reset")
    for outcome in ("completed", "abandoned")
}
MAX_CAUSES = 10_000  # requested rebalances to remember
ROLES = {ElectionState.LEADING: "leads", ElectionState.STANDBY: "is a standby"}


class Observed:
    """What has happened so far, in counts that only grow, and the last measurements."""

    def __init__(self) -> None:
        """Start at zero."""
        self.sessions = 0
        self.session_losses = 0
        self.round_trip_s = 0.0

    def lag(self, seconds: float) -> None:
        """Note how late the loop handled an event."""

    def rebalance(self, cause: str, cause_id: str, effect: Emit) -> None:
        """Note the end of a rebalance."""

    def region_round(self, kind: str, outcome: str, elapsed_s: float) -> None:
        """Note the end of a checkpoint or a reset of a region."""


class Monitor:
    """Follows one coordinator process."""

    def __init__(self, shards: AllShards, vitals: Vitals) -> None:
        """Expect no event yet."""
        self.shards = shards
        self.vitals = vitals
        self.observed = Observed()
        self.listeners: list[Callable[[Emit, str], None]] = []  # they get each event of telemetry with its cause
        self.answered: Callable[[Replied], None] = _drop  # gets answers to calls that others have made for people
        self.is_per_group = False  # whether metrics have labels per group
        self.is_connected = False
        self._session_id = 0
        self._tick: Tick | None = None  # put into the loop's queue, and not handled yet
        self._tick_due_us = 0
        self._asked_us = 0  # when ZooKeeper was asked; 0: it has answered
        self._requested: OrderedDict[str, str] = OrderedDict()  # id of a cause -> its kind; most need no plan
        self._causes: OrderedDict[str, str] = OrderedDict()  # the same, of rebalances under way

    def beat(self, put: Callable[[Event], None], request: Callable[[int, Call], None]) -> None:
        """Let an event pass through the loop, and a call through ZooKeeper, once a second and for ever."""
        while True:
            due_us = clock.steady_us() + int(self.vitals.beat_s * 1e6)
            gevent.sleep(self.vitals.beat_s)
            if self._tick is None:
                self._tick, self._tick_due_us = Tick(), due_us
                put(self._tick)
            if not self._asked_us:
                self._asked_us = clock.steady_us()
                request(BEAT_CALL, Get("/"))
            self.vitals.report(is_ready=not self.health().faults, status=self.status())

    def handling(self, event: Event) -> None:
        """Note an event that the loop handles now."""
        self.vitals.looped()
        if event is self._tick:
            self._tick = None
            self.observed.lag(max(0, clock.steady_us() - self._tick_due_us) / 1e6)
        elif isinstance(event, Replied):
            self._note_reply(event)
        elif isinstance(event, calls.RepliedAll):
            for row in event.replies:
                if row[0] < 0:  # as are the ids of all calls in it
                    for one in row.each():
                        self._note_reply(one)
        elif isinstance(event, calls.Connected):
            self.is_connected = True
            self.observed.sessions += event.session_id != self._session_id
            self._session_id = event.session_id
            self.vitals.answered()
        elif isinstance(event, calls.Suspended | calls.Lost):
            self.is_connected = False
            self.observed.session_losses += isinstance(event, calls.Lost)

    def _note_reply(self, event: Replied) -> None:
        if event.call_id == BEAT_CALL:
            self._note_beat(event)
        elif event.call_id < BEAT_CALL:
            self.answered(event)

    def _note_beat(self, event: Replied) -> None:
        asked_us, self._asked_us = self._asked_us, 0
        if not (isinstance(event.reply, Refused) and event.reply.outcome_unknown):
            self.vitals.answered()
            self.observed.round_trip_s = (clock.steady_us() - asked_us) / 1e6

    def emitted(self, effect: Emit) -> str:
        """Note an event of telemetry; return the cause of its rebalance."""
        cause_id = effect.cause_id or ""
        cause = self._causes.get(cause_id) or self._requested.get(cause_id, "unknown")
        if effect.kind == "rebalance_requested":
            _remember(self._requested, cause_id, str(effect.fields["trigger"]))
        elif effect.kind == "rebalance_planned":
            self._requested.pop(cause_id, None)
            _remember(self._causes, cause_id, cause)
        elif effect.kind == "rebalance_finished":
            self._requested.pop(cause_id, None)
            self._causes.pop(cause_id, None)
            self.observed.rebalance(cause, cause_id, effect)
        elif effect.kind in REGION_ROUNDS:
            elapsed_us = int(str(effect.fields["elapsed_us"]))
            self.observed.region_round(*REGION_ROUNDS[effect.kind], elapsed_us / 1e6)
        for listen in self.listeners:
            listen(effect, cause)
        return cause

    # Showing --------------------------------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """Whether it leads some shard, in a session that is connected."""
        return self.is_connected and bool(self.led)

    @property
    def led(self) -> list[int]:
        """The shards that it leads."""
        return [
            one.shard.number for one in self.shards.machines if one.coordinator_elector.state is ElectionState.LEADING
        ]

    @property
    def state(self) -> ElectionState:
        """Its role: whether it leads some shard, or else stands by for all of them."""
        states = [one.coordinator_elector.state for one in self.shards.machines] or [ElectionState.DISCONNECTED]
        if ElectionState.LEADING in states:
            return ElectionState.LEADING
        return next((state for state in states if state not in ROLES), ElectionState.STANDBY)

    @property
    def epoch(self) -> int:
        """The highest epoch in which it has led."""
        return max((one.coordinator_elector.epoch for one in self.shards.machines), default=0)

    @property
    def unfinished_restore(self) -> str | None:
        """What to tell people about a restore that keeps all coordinators from leading."""
        found = (one.coordinator_elector.unfinished_restore for one in self.shards.machines)
        return next((text for text in found if text is not None), None)

    def machine_of(self, group: str) -> Coordinator | None:
        """Return the coordinator of a group's shard; None while the number of shards is not known."""
        machines = self.shards.machines
        if len(machines) > 1:  # it is asked for each of ten thousand groups
            return machines[shard_of(group, len(machines))]
        return machines[0] if machines else None

    def group(self, name: str) -> Group | None:
        """Return a group that this coordinator serves."""
        machine = self.machine_of(name)
        return None if machine is None else machine.groups.get(name)

    def groups(self) -> list[str]:
        """Return the names of the groups that this coordinator serves."""
        return [name for one in self.shards.machines for name in one.groups]

    def is_unread(self, name: str) -> bool:
        """Whether a group may exist that this leader has not read yet."""
        machine, group = self.machine_of(name), self.group(name)
        if group is not None:
            return not group.view.created_zxid
        return machine is not None and (not machine.is_complete or name in machine.groups_to_load)

    def is_outdated(self, name: str) -> bool:
        """Whether a group waits to be read because what is known of it may be wrong, as after a broken connection."""
        machine = self.machine_of(name)
        return machine is not None and machine.groups_to_load.reasons.get(name, RECONCILIATION) != RECONCILIATION

    def unread_count(self) -> int:
        """Return how many groups wait to be read, because they are not known, or what is known may be wrong."""
        waiting = [reason for one in self.shards.machines for reason in one.groups_to_load.reasons.values()]
        return len(waiting) - waiting.count(RECONCILIATION)

    def served(self) -> Iterator[Group]:
        """Iterate over the groups that this coordinator serves; now and then other greenlets have their turn."""
        served = [group for one in self.shards.machines for group in one.groups.values()]
        for number, group in enumerate(served, start=1):
            yield group
            if number % MAX_LOOKS == 0:
                gevent.sleep(TURN_S)

    def health(self) -> Health:
        """Return what the probes ask for. A standby is ready, too."""
        machines = self.shards.machines
        electing = [state for one in machines if (state := one.coordinator_elector.state) not in ROLES]
        leading = [one for one in machines if one.coordinator_elector.state is ElectionState.LEADING]
        faults = []
        if not self.is_connected:
            faults.append("ZooKeeper does not answer")
        elif self.shards.damage is not None and not leading:
            faults.append(self.shards.damage)
        elif self.unfinished_restore is not None:
            faults.append(self.unfinished_restore)
        elif electing or not machines:
            faults.append(f"it neither leads nor is a standby yet: {(electing or [self.state])[0].value}")
        elif not all(one.is_complete for one in leading):
            faults.append("topics and groups are being listed")
        facts: dict[str, object] = {
            "broker_id": self.shards.identity.brokerid,
            "state": self.state.value,
            "epoch": self.epoch,
        }
        if len(machines) > 1:
            facts |= {"shards": len(machines), "leads_shards": [one.shard.number for one in leading]}
        return Health(self.vitals.death(), faults, self.leads, facts)

    def status(self) -> str:
        """Return a line for `systemctl status`."""
        if not self.is_connected:
            return "ZooKeeper does not answer"
        count = len(self.shards.machines)
        of_shards = f" {len(self.led)} of {count} shards" if count > 1 and self.led else ""
        return f"{ROLES.get(self.state, self.state.value)}{of_shards}; {len(self.groups())} groups"

    def show_groups(self, is_wanted: bool) -> None:
        """Change whether metrics have labels per group."""
        self.is_per_group = is_wanted

    def figures(self) -> Iterator[Figures]:
        """Count in each group; now and then other greenlets have their turn."""
        now_us, looks = clock.steady_us(), 0
        for group in [group for one in self.shards.machines for group in one.groups.values()]:
            found = census.count(group, now_us)
            yield found
            looks += found.looks
            if looks > MAX_LOOKS:
                looks = 0
                gevent.sleep(TURN_S)

    def log_state(self) -> None:
        """Write the state of this coordinator and of all groups to the log."""
        machines = self.shards.machines
        STATE_LOG.info(
            "coordinator %d: %s; %d calls under way, %d groups queued, %d refused paths",
            self.shards.identity.brokerid,
            self.status(),
            sum(len(one.scheduler.awaited) for one in machines),
            sum(len(one.rebalance_request_queue) for one in machines),
            sum(len(one.scheduler.refusals.known) for one in machines),
        )
        for found in self.figures():
            STATE_LOG.info("%s", found.line())


def _drop(_event: Replied) -> None:
    """Nobody has made such a call."""


def _remember(causes: OrderedDict[str, str], cause_id: str, cause: str) -> None:
    causes[cause_id] = cause
    if len(causes) > MAX_CAUSES:
        causes.popitem(last=False)
