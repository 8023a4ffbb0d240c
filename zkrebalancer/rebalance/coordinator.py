"""The whole coordinator as one pure machine: `step(event, now) -> effects`.

Keeps the names of the legacy design: `coordinator_elector`, `coordinator_startup`, `handle_new_session`,
`groups_being_rebalanced`, `consumer_groups_per_topic`, `groups_with_wildcard_topics`, `rebalance_request_queue`,
`request_handler`, and the listeners for topics, topic partitions, groups and group members.
"""

from __future__ import annotations

from zkrebalancer.protocol import calls, paths
from zkrebalancer.protocol.calls import Children, ListChildren, Reply
from zkrebalancer.protocol.errors import InvalidNameError
from zkrebalancer.protocol.requests import DEFAULT_LIMIT, RequestLimit
from zkrebalancer.rebalance.effects import Computed, Effect, Event, LoadsRead, Now, ShutDown, Stopped, Tick
from zkrebalancer.rebalance.election import CoordinatorElector, Identity
from zkrebalancer.rebalance.group import Group, Leadership
from zkrebalancer.rebalance.quarantine import Quarantine
from zkrebalancer.rebalance.scheduler import OF_A_ROOT, Scheduler
from zkrebalancer.rebalance.states import GroupState
from zkrebalancer.rebalance.subscriptions import Subscriptions
from zkrebalancer.rebalance.topics import TopicListener

OWNER = "/coordinator"  # no group has such a name
MAX_PLANNING = 4  # strategies that compute at once; the others wait in the queue
MAX_SLOW_PLANS = 12  # strategies that have computed for longer than PLAN_PATIENCE_US, and keep no other group waiting
PLAN_PATIENCE_US = 5_000_000
MAX_LOADING = 200  # groups that are read at once after an election or a reconnect
MAX_LOADS_PER_STEP = 20  # groups that begin to be read in one step, so that other events have their turn
_REBALANCING = frozenset({GroupState.QUEUED, GroupState.PLANNING, GroupState.MOVING, GroupState.BACKING_OFF})


class Coordinator:
    """One coordinator process, leading or standing by."""

    def __init__(
        self, identity: Identity, weighing: frozenset[str] = frozenset(), limit: RequestLimit = DEFAULT_LIMIT
    ) -> None:
        """Wait for the first `Connected`.

        `weighing`: strategies for which `ReadLoads` will be performed; `limit`: of transactions.
        """
        self.identity = identity
        self._weighing = weighing
        self.scheduler = Scheduler(limit)
        self._own = self.scheduler.part(OWNER)
        self.quarantine = Quarantine(self.scheduler, self._drop, self._serve_again)
        self.scheduler.contain = self.quarantine.run
        self.coordinator_elector = CoordinatorElector(
            self.scheduler, identity, self.coordinator_startup, self._resigned
        )
        self.subscriptions = Subscriptions()
        self.rebalance_request_queue: dict[str, None] = {}
        self.topic_listener = TopicListener(self.scheduler, self.subscriptions, self._topic_changed)
        self.groups: dict[str, Group] = {}
        self.leadership: Leadership | None = None
        self._planning: dict[str, int] = {}  # group -> since when
        self._waits_for_topics = False  # groups are read after the topics, which bound what the groups' nodes may name
        self.groups_to_load: dict[str, str] = {}  # group -> trigger; a few begin at a time
        self._loading: set[str] = set()
        self._groups_known = False
        self._stopping = False
        self._refused_groups: set[str] = set()

    @property
    def groups_being_rebalanced(self) -> dict[str, bool]:
        """For each group, whether it is being rebalanced: a view derived from the states."""
        return {name: group.state in _REBALANCING for name, group in self.groups.items()}

    @property
    def consumer_groups_per_topic(self) -> dict[str, set[str]]:
        """For each topic, the groups that name it."""
        return {topic: set(groups) for topic, groups in self.subscriptions.consumer_groups_per_topic.items()}

    @property
    def groups_with_wildcard_topics(self) -> set[str]:
        """The groups that have wildcard subscriptions."""
        return set(self.subscriptions.groups_with_wildcard_topics)

    def step(self, event: Event, now: Now) -> list[Effect]:
        """Handle one event; return what has to be done, in order."""
        self.scheduler.now = now
        self.quarantine.event = event
        self.scheduler.run_due()
        if isinstance(event, calls.Replied):
            self.scheduler.answer(event.call_id, event.reply)
        elif isinstance(event, calls.Watched):
            self._watched(event)
        elif isinstance(event, Computed | LoadsRead):
            self._answered(event)
        elif isinstance(event, calls.Connected):
            self._connected(event)
        elif isinstance(event, calls.Suspended):
            self._own.warn("the connection to ZooKeeper is lost; nothing is rebalanced until it is back")
            self.coordinator_elector.suspended()
        elif isinstance(event, calls.Lost):
            self.handle_new_session()
        elif isinstance(event, ShutDown):
            self._shut_down()
        elif not isinstance(event, Tick):
            raise TypeError(f"not an event: {event!r}")
        self._maybe_load()
        self.request_handler()
        return self.scheduler.take_effects()

    def _answered(self, event: Computed | LoadsRead) -> None:
        """What was asked for a group was computed, or read; meanwhile the group may be gone."""
        group = self.groups.get(event.group)
        if group is None:
            return
        if isinstance(event, Computed):
            self.quarantine.run(group.name, group.computed, event)
        else:
            self.quarantine.run(group.name, group.loads.handle, event)

    # Leading and not leading ----------------------------------------------------------------------------------------

    def _connected(self, event: calls.Connected) -> None:
        self.coordinator_elector.connected(event.session_id)
        if self.leadership is not None:
            self._read_everything()

    def handle_new_session(self) -> None:
        """The session expired: forget everything and run for leadership again, as section B of the legacy design."""
        self.coordinator_elector.session_lost()

    def coordinator_startup(self, epoch: int, epoch_version: int) -> None:
        """The election is won: read all topics and groups, and look at every group."""
        seed = f"{self.coordinator_elector.session_id}/{epoch}"
        self.scheduler.begin_leadership(seed, epoch_version, self.coordinator_elector.step_down)
        self.leadership = Leadership(
            scheduler=self.scheduler,
            epoch=epoch,
            subscriptions=self.subscriptions,
            rebalance_request_queue=self.rebalance_request_queue,
            weighing=self._weighing,
        )
        self._own.emit("leader_elected", None, None, epoch=epoch, brokerid=self.identity.brokerid)
        self._read_everything()

    def _read_everything(self) -> None:
        """Read all topics and groups, after an election or a broken connection: there are no watches any more.

        The election has made a `sync` before: what is read here is no older than the last write of the last connection.
        """
        self.topic_listener.read_all()
        self._waits_for_topics = True
        self.groups_to_load = dict.fromkeys(self.groups, "reconnected")
        self._loading.clear()

    def _maybe_load(self) -> None:
        """Read the groups once the topics are known: at most MAX_LOADING at once, MAX_LOADS_PER_STEP in one step.

        Until its turn comes, a group continues with what was known before the connection broke. That is safe: commands
        of the former connection are neither taken as acknowledged nor sent again.
        """
        if self.leadership is None:
            return
        if self._waits_for_topics and self.subscriptions.are_topics_known:
            self._waits_for_topics = False
            self.list_groups()
        if self._waits_for_topics or not self.groups_to_load or self._own.is_awake_planned("load"):
            return
        self._loading = {name for name in self._loading if self._is_in(name, GroupState.LOADING)}
        begun = 0
        while self.groups_to_load and len(self._loading) < MAX_LOADING and begun < MAX_LOADS_PER_STEP:
            name = next(iter(self.groups_to_load))
            self._load(name, self.groups_to_load.pop(name), self.leadership)
            begun += 1
        if begun == MAX_LOADS_PER_STEP:
            self._own.wake_soon("load", _in_a_step_of_its_own)

    def _load(self, name: str, trigger: str, leadership: Leadership) -> None:
        if name not in self.groups:
            self.groups[name] = Group(name, leadership)
        self._loading.add(name)
        self.quarantine.run(name, self.groups[name].load, trigger)

    def _is_in(self, name: str, state: GroupState) -> bool:
        return name in self.groups and self.groups[name].state is state

    def _resigned(self, reason: str) -> None:
        self._own.emit(
            "leader_resigned",
            None,
            None,
            epoch=self.coordinator_elector.epoch,
            brokerid=self.identity.brokerid,
            reason=reason,
        )
        self.leadership = None
        for name in self.groups:
            self.scheduler.forget(name)
        self._own.forget()
        self.quarantine.clear()
        self.topic_listener.forget()
        self.groups.clear()
        self._planning.clear()
        self._waits_for_topics = False
        self.groups_to_load.clear()
        self._loading.clear()
        self._groups_known = False
        self.subscriptions.clear()
        self.rebalance_request_queue.clear()
        if self._stopping:
            self._own.do(Stopped())

    def _shut_down(self) -> None:
        self._stopping = True
        if not self.coordinator_elector.resign():
            self._own.do(Stopped())

    # The request handler --------------------------------------------------------------------------------------------

    def request_handler(self) -> None:
        """Plan the groups that wait in `rebalance_request_queue`, as many at once as may compute."""
        if self.leadership is None or not self.subscriptions.are_topics_known:
            return
        now_us = self.scheduler.now.mono_us
        self._planning = {n: at for n, at in self._planning.items() if self._is_in(n, GroupState.PLANNING)}
        in_time = [since_us for since_us in self._planning.values() if now_us < since_us + PLAN_PATIENCE_US]
        free = min(MAX_PLANNING - len(in_time), MAX_PLANNING + MAX_SLOW_PLANS - len(self._planning))
        while free > 0 and self.rebalance_request_queue:
            waiting = next(iter(self.rebalance_request_queue))
            del self.rebalance_request_queue[waiting]
            self.quarantine.run(waiting, self.groups[waiting].begin_planning)
            self._planning[waiting] = now_us
            in_time.append(now_us)
            free -= 1
        if self.rebalance_request_queue and in_time:
            self._own.wake("patience", min(in_time) + PLAN_PATIENCE_US, _in_a_step_of_its_own)

    # The listeners --------------------------------------------------------------------------------------------------

    def _watched(self, event: calls.Watched) -> None:
        if event.path == paths.COORDINATOR:
            self.coordinator_elector.watched()
        elif self.leadership is None:
            return
        elif event.path == paths.GROUPS:
            self.list_groups()
        elif event.path.startswith(paths.BROKER_TOPICS):
            self.topic_listener.watched(event)
        elif event.path.startswith(paths.GROUPS + "/"):
            self._group_watched(event)

    def _group_watched(self, event: calls.Watched) -> None:
        name, *rest = event.path.removeprefix(paths.GROUPS + "/").split("/")
        if name in self.groups:
            self.quarantine.run(name, self.groups[name].watched, tuple(rest))

    def _topic_changed(self, group: str, kind: str) -> None:
        self.quarantine.run(group, self.groups[group].topics_changed, kind)

    def list_groups(self) -> None:
        """`register_group_change_listener`: groups may have come or gone."""
        self._own.ask(ListChildren(paths.GROUPS, watch=True), self._groups_listed, expected=OF_A_ROOT)

    def _groups_listed(self, reply: Reply) -> None:
        if not isinstance(reply, Children) or self.leadership is None:
            return
        for name in sorted((self.groups.keys() | self.groups_to_load.keys()) - set(reply.names)):
            self._drop(name)
        self.quarantine.keep(frozenset(reply.names))
        for name in reply.names:
            if name not in self.groups and not self.quarantine.is_out(name) and self._is_legal(name):
                self.groups_to_load.setdefault(name, "group-created" if self._groups_known else "leader-elected")
            elif name in self.groups and self.groups[name].is_gone:
                self.groups_to_load.setdefault(name, "group-created")
        self._groups_known = True

    def _drop(self, name: str) -> list[str]:
        """Forget a group, whatever state it is in; return the lines of its story."""
        self.scheduler.forget(name)
        self.subscriptions.forget_group(name)
        self.groups_to_load.pop(name, None)
        self.rebalance_request_queue.pop(name, None)
        group = self.groups.pop(name, None)
        return [] if group is None else group.story.lines()

    def _serve_again(self, name: str) -> None:
        self.groups_to_load.setdefault(name, "retry")

    def _is_legal(self, name: str) -> bool:
        try:
            paths.validate_name("group", name)
        except InvalidNameError as error:
            if name not in self._refused_groups:
                self._refused_groups.add(name)
                self._own.warn(f"{error}; the group is not served")
            return False
        return True


def _in_a_step_of_its_own() -> None:
    """Do nothing: the step that this timer causes continues what waits."""
