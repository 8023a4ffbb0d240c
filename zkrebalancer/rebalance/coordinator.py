"""The whole coordinator as one pure machine: `step(event, now) -> effects`.

Keeps the names of the legacy design: `coordinator_elector`, `coordinator_startup`, `handle_new_session`,
`groups_being_rebalanced`, `consumer_groups_per_topic`, `groups_with_wildcard_topics`, `rebalance_request_queue`,
`request_handler`, and the listeners for topics, topic partitions, groups and group members.
"""

from __future__ import annotations

from collections import deque
from itertools import chain

from zkrebalancer.protocol import calls, paths
from zkrebalancer.protocol.calls import Children, ListChildren, Reply
from zkrebalancer.protocol.errors import InvalidNameError
from zkrebalancer.protocol.requests import DEFAULT_LIMIT, RequestLimit
from zkrebalancer.protocol.shards import WHOLE, Shard
from zkrebalancer.rebalance.deletions import Deletions
from zkrebalancer.rebalance.effects import (
    Computed,
    Effect,
    Event,
    HandOver,
    LoadsRead,
    Now,
    Numbers,
    Order,
    Retire,
    Stand,
    Stopped,
    Tick,
)
from zkrebalancer.rebalance.election import OWNER as ELECTION
from zkrebalancer.rebalance.election import CoordinatorElector, Identity
from zkrebalancer.rebalance.former_lives import FormerLives
from zkrebalancer.rebalance.group import Group
from zkrebalancer.rebalance.leadership import Leadership
from zkrebalancer.rebalance.listing import Listing
from zkrebalancer.rebalance.obstacles import Obstacles
from zkrebalancer.rebalance.quarantine import Quarantine
from zkrebalancer.rebalance.reconciling import RECONCILE_INTERVAL_US
from zkrebalancer.rebalance.region import OWN_CHILDREN
from zkrebalancer.rebalance.rubbish import Rubbish
from zkrebalancer.rebalance.scheduler import OF_A_ROOT, Scheduler
from zkrebalancer.rebalance.states import GroupState
from zkrebalancer.rebalance.subscriptions import Subscriptions
from zkrebalancer.rebalance.topics import TopicListener
from zkrebalancer.rebalance.turnover import Turnover
from zkrebalancer.rebalance.turns import Turns

OWNER = "/coordinator"  # no group has such a name
MAX_PLANNING = 4  # strategies that compute at once; other groups wait in the queue
MAX_SLOW_PLANS = 12  # strategies that have computed for longer than PLAN_PATIENCE_US, and delay no other group
PLAN_PATIENCE_US = 1_000_000
WORK_OF_A_DROP = 10  # units of `scheduler.MAX_WORK_PER_STEP`
MAX_LOADING = 200  # groups being read at once after an election or a reconnect
MAX_LOADS_PER_STEP = 5  # groups whose reading starts in one step, so that other events have their turn
_REBALANCING = frozenset({GroupState.QUEUED, GroupState.PLANNING, GroupState.MOVING, GroupState.BACKING_OFF})


class Coordinator:
    """One coordinator of one shard, leading or standing by."""

    def __init__(
        self,
        identity: Identity,
        weighing: frozenset[str] = frozenset(),
        limit: RequestLimit = DEFAULT_LIMIT,
        shard: Shard = WHOLE,
        numbers: Numbers | None = None,
    ) -> None:
        """Wait for the first `Connected`.

        `weighing`: strategies for which `ReadLoads` will be performed; `limit`: of transactions.
        """
        self.identity = identity
        self.shard = shard
        self._weighing = weighing
        self._numbers = numbers or Numbers()
        self.scheduler = Scheduler(limit, shard, self._numbers)
        self._own = self.scheduler.part(OWNER)
        self.quarantine = Quarantine(self.scheduler, self._drop, self._serve_again)
        self.obstacles = Obstacles(self.scheduler, self.quarantine, shard.obstacles)
        self.scheduler.contain = self.quarantine.contain
        self.scheduler.note_waiting = self._note_waiting
        self.coordinator_elector = CoordinatorElector(
            self.scheduler, identity, self.coordinator_startup, self._resigned, shard
        )
        self.subscriptions = Subscriptions()
        self.rebalance_request_queue = Turns()
        self.topic_listener = TopicListener(self.scheduler, self.subscriptions, self._topic_changed)
        self.former_lives = FormerLives(self.scheduler, shard)
        self.deletions = Deletions(self.scheduler)
        self.groups: dict[str, Group] = {}
        self.leadership: Leadership | None = None
        self.turnover = Turnover()
        self._planning: dict[str, int] = {}  # group -> since when
        self._waits_for_topics = False  # groups are read after the topics, which limit what the groups' nodes may name
        self.groups_to_load = Turns()
        self._listing = Listing(self._own, self._groups_seen, self._groups_missing, self._groups_compared)
        self._is_listing = False
        self._listed: dict[str, None] = {}  # the existing groups, in order
        self._is_listed = False  # whether `_listed` is complete since the watches were set
        self._found_after = ""  # the trigger of the groups that are listed until then
        self._to_drop: deque[str] = deque()  # deleted groups that are still in memory
        self._rubbish = Rubbish(self.scheduler)  # data of ended leaderships
        self._stopping = False

    @property
    def groups_being_rebalanced(self) -> dict[str, bool]:
        """For each group, whether it is being rebalanced: a view derived from the states."""
        return {name: group.state in _REBALANCING for name, group in self.groups.items()}

    @property
    def consumer_groups_per_topic(self) -> dict[str, set[str]]:
        """For each topic, the groups that name it, but not with very many others."""
        return {topic: set(groups) for topic, groups in self.subscriptions.consumer_groups_per_topic.items()}

    @property
    def groups_with_wildcard_topics(self) -> set[str]:
        """The groups that have wildcard subscriptions."""
        return set(self.subscriptions.groups_with_wildcard_topics)

    @property
    def is_complete(self) -> bool:
        """Whether this coordinator leads and knows every topic, and which groups exist."""
        return self.leadership is not None and self.subscriptions.are_topics_known and self._is_listed

    @property
    def has_rubbish(self) -> bool:
        """Whether it still has data of ended leaderships, and frees some in each step."""
        return bool(self._rubbish)

    def step(self, event: Event, now: Now) -> list[Effect]:
        """Handle one event; return the effects to perform, in order."""
        self.scheduler.now = now
        self.quarantine.event = event
        self.scheduler.run_next_due()
        if isinstance(event, calls.Replied | calls.RepliedAll):
            self._replied(event)
        elif isinstance(event, calls.Watched):
            self._watched(event)
        elif isinstance(event, Computed | LoadsRead):
            self._answered(event)
        elif isinstance(event, calls.Connected):
            self._connected(event)
        elif isinstance(event, calls.Suspended):
            self._suspended()
        elif isinstance(event, calls.Lost):
            self.handle_new_session()
        elif isinstance(event, Order):
            self._ordered(event)
        elif not isinstance(event, Tick):
            raise TypeError(f"not an event: {event!r}")
        self._maybe_load()
        self.request_handler()
        if self.scheduler.is_news:
            self.scheduler.is_news = False
            self.obstacles.look()
        return self.scheduler.take_effects()

    def _replied(self, event: calls.Replied | calls.RepliedAll) -> None:
        """Handle each reply as its own part of the step: what one raises concerns only its group."""
        for one in event.replies if isinstance(event, calls.RepliedAll) else (event,):
            self.quarantine.event = one
            self.scheduler.answer_all(one)

    def _answered(self, event: Computed | LoadsRead) -> None:
        """Handle an answer for a group, which may be gone by now."""
        group = self.groups.get(event.group)
        if group is None:
            return
        if isinstance(event, Computed):
            self.scheduler.run(group.name, group.computed, event)
        else:
            self.scheduler.run(group.name, group.loads.handle, event)

    # Leading and not leading ----------------------------------------------------------------------------------------

    def _connected(self, event: calls.Connected) -> None:
        self.coordinator_elector.connected(event.session_id)
        if self.leadership is not None:
            self._read_everything("reconnected")

    def _suspended(self) -> None:
        if self.shard.number == 0:  # one line for all shards of the process
            self._own.warn("the connection to ZooKeeper is lost; nothing is rebalanced until it is back")
        self.coordinator_elector.suspended()

    def handle_new_session(self) -> None:
        """Forget everything after the session expired, and run for leadership again (legacy design, section B)."""
        self.coordinator_elector.session_lost()

    def coordinator_startup(self, epoch: int, epoch_version: int) -> None:
        """After winning the election, read all topics and groups, and check every group."""
        # One epoch may have several, if a sync was refused meanwhile, or the number of shards was written as it is.
        self._numbers.leadership += 1
        seed = f"{self.coordinator_elector.session_id}/{self.shard.seed}{epoch}/{self._numbers.leadership}"
        self.scheduler.begin_leadership(seed, epoch_version, self.coordinator_elector.step_down)
        self.leadership = Leadership(
            scheduler=self.scheduler,
            epoch=epoch,
            subscriptions=self.subscriptions,
            former_lives=self.former_lives,
            deletions=self.deletions,
            rebalance_request_queue=self.rebalance_request_queue,
            groups_to_load=self.groups_to_load,
            weighing=self._weighing,
            turnover=self.turnover,
        )
        self._own.emit(
            "leader_elected", None, None, epoch=epoch, brokerid=self.identity.brokerid, **self.shard.event_fields
        )
        self._read_everything("leader-elected")

    def _read_everything(self, trigger: str) -> None:
        """Read all topics and groups, after an election or a broken connection, because all watches are gone.

        The election has done a `sync`, so what is read here is no older than the last write on the last connection.
        """
        if self.leadership is not None:
            self.obstacles.begin(self.leadership.epoch)
        self.topic_listener.read_all()
        self.former_lives.read()
        self._own.wake("reconcile", self.scheduler.now.mono_us + RECONCILE_INTERVAL_US, self._reconcile)
        self._waits_for_topics = True
        self._is_listing = False
        self.groups_to_load.become(self.groups, "reconnected")
        self._found_after = trigger
        if self.leadership is not None:
            self.leadership.loading.clear()
        self._listing.stop()
        self._is_listed = False
        # Groups that were listed but not read yet must be found again, unless they are read when their pause is over.
        self._listed = dict.fromkeys(chain(self.groups, self.quarantine.out))

    def _reconcile(self) -> None:
        """List the groups and read the topics again, in case ZooKeeper withheld a watch event."""
        self._own.wake("reconcile", self.scheduler.now.mono_us + RECONCILE_INTERVAL_US, self._reconcile)
        if not self._is_listing:
            self.list_groups()
        self.topic_listener.read_again()

    def _maybe_load(self) -> None:
        """Read the groups once the topics are known: at most MAX_LOADING at once, MAX_LOADS_PER_STEP in one step.

        Until its turn comes, a group continues with what was known before the connection broke. That is safe: commands
        of the former connection neither count as acknowledged nor are sent again.
        """
        if self.leadership is None:
            return
        if self._waits_for_topics and self.subscriptions.are_topics_known and self.former_lives.is_known:
            self._waits_for_topics = False
            self.list_groups()
        if self._waits_for_topics or not self.groups_to_load or self._own.has_timer("load"):
            return
        loading = self.leadership.loading
        begun = 0
        while self.groups_to_load and len(loading) < MAX_LOADING and begun < MAX_LOADS_PER_STEP:
            self._load(*self.groups_to_load.next(), self.leadership)
            begun += 1
        if begun == MAX_LOADS_PER_STEP:
            self._own.wake_soon("load", _in_a_step_of_its_own)

    def _load(self, name: str, trigger: str, leadership: Leadership) -> None:
        if self.quarantine.is_out(name) or not self._is_legal(name):
            return
        if name not in self.groups:
            self.groups[name] = Group(name, leadership)
        self.scheduler.run(name, self.groups[name].load, trigger)

    def _note_waiting(self, owner: str) -> None:
        """Let another group be read while this one waits for rights."""
        if self.leadership is not None:
            self.leadership.loading.discard(owner)

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
            **self.shard.event_fields,
        )
        self.leadership = None
        self.obstacles.end()
        groups, listed, self.groups, self._listed = self.groups, self._listed, {}, {}
        rubbish = [*self.scheduler.forget_all_but(ELECTION), *self.quarantine.clear(), *self.subscriptions.clear()]
        rubbish += self.topic_listener.end()
        self._rubbish.add(*self.turnover.clear())
        self.former_lives.forget()
        self._planning.clear()
        self._waits_for_topics = self._is_listed = False
        self.groups_to_load.become((), "")
        self._to_drop.clear()
        self.rebalance_request_queue.become((), "")
        self._rubbish.add(groups, listed, *rubbish)
        if self._stopping:
            self._own.do(Stopped())

    def _ordered(self, event: Order) -> None:
        if isinstance(event, Stand):
            self.coordinator_elector.be_patient(event.patience_us)
        elif isinstance(event, HandOver):
            self.coordinator_elector.hand_over()
        elif isinstance(event, Retire):
            self.coordinator_elector.retire("the number of shards has changed")
        else:
            self._stopping = True
            if not self.coordinator_elector.resign():
                self._own.do(Stopped())

    # The request handler --------------------------------------------------------------------------------------------

    def request_handler(self) -> None:
        """Plan the groups in `rebalance_request_queue`: one per step, and at most MAX_PLANNING at once."""
        if self.leadership is None or not self.subscriptions.are_topics_known:
            return
        now_us = self.scheduler.now.mono_us
        self._planning = {n: at for n, at in self._planning.items() if self._is_in(n, GroupState.PLANNING)}
        in_time = [since_us for since_us in self._planning.values() if now_us < since_us + PLAN_PATIENCE_US]
        free = min(MAX_PLANNING - len(in_time), MAX_PLANNING + MAX_SLOW_PLANS - len(self._planning))
        if free > 0 and self.rebalance_request_queue:
            waiting, _ = self.rebalance_request_queue.next()
            self.scheduler.run(waiting, self.groups[waiting].begin_planning)
            if self._is_in(waiting, GroupState.PLANNING):  # a group that needs no strategy is at rest again
                self._planning[waiting] = now_us
                in_time.append(now_us)
                free -= 1
        if self.rebalance_request_queue and free > 0:
            self._own.wake_soon("patience", _in_a_step_of_its_own)
        elif self.rebalance_request_queue and in_time:
            self._own.wake("patience", min(in_time) + PLAN_PATIENCE_US, _in_a_step_of_its_own)

    # The listeners --------------------------------------------------------------------------------------------------

    def _watched(self, event: calls.Watched) -> None:
        if event.path == self.shard.coordinator:
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
        # No watch stands on a folder of consumers that was missing: it may be among the group's new children.
        changed = (OWN_CHILDREN, ("ids",)) if event.children and not rest else (tuple(rest),)
        for below in changed:
            if name in self.groups:
                self.scheduler.run(name, self.groups[name].watched, below)

    def _topic_changed(self, group: str, kind: str, topic: str) -> None:
        if group in self.groups:
            self.scheduler.run(group, self.groups[group].topics_changed, kind, topic)

    def list_groups(self) -> None:
        """List the groups, because some may have been created or deleted (`register_group_change_listener`)."""
        self._is_listing = True
        self._own.ask(ListChildren(paths.GROUPS, watch=True), self._groups_listed, expected=OF_A_ROOT)

    def _groups_listed(self, reply: Reply) -> None:
        self._is_listing = False
        if isinstance(reply, Children) and self.leadership is not None:
            self._listing.compare(self.shard.of(reply.names), self._listed)

    def _groups_seen(self, names: list[str]) -> None:
        if self.leadership is None:
            return
        new = [name for name in names if name not in self._listed]
        self._listed.update(dict.fromkeys(new))
        self.groups_to_load.extend(new, "group-created" if self._is_listed else self._found_after)
        if gone := self.leadership.gone:
            self.groups_to_load.extend(sorted(gone.intersection(names)), "group-created")

    def _groups_missing(self, names: list[str]) -> None:
        for name in names:
            del self._listed[name]
        self._to_drop.extend(names)

    def _groups_compared(self) -> None:
        self._is_listed = True
        self._drop_some()
        self.former_lives.keep(self._listed)

    def _drop_some(self) -> None:
        """Forget as many of the deleted groups as one step allows."""
        while self._to_drop and self._own.has_time:
            self._own.spend(WORK_OF_A_DROP)
            name = self._to_drop.popleft()
            if name in self._listed:
                continue  # it exists again, and is read anew
            group = self.groups.get(name)
            if group is not None:
                self.former_lives.wait_us(name, group.view)
            self.deletions.report(name, group.view.created_zxid if group is not None else 0)
            self._drop(name)
            self.quarantine.forget(name)
        if self._to_drop:
            self._own.wake_soon("drop", self._drop_some)

    def _drop(self, name: str) -> list[str]:
        """Forget a group in any state; return the lines of its story."""
        self.scheduler.forget(name)
        self.scheduler.part(name).note_backing_off(None)
        self.scheduler.part(name).note_unapproved(None)
        self.subscriptions.forget_group(name)
        self.groups_to_load.remove(name)
        self.rebalance_request_queue.remove(name)
        self.turnover.forget(name)
        if self.leadership is not None:
            self.leadership.loading.discard(name)
            self.leadership.gone.discard(name)
        group = self.groups.pop(name, None)
        return [] if group is None else group.story.lines()

    def _serve_again(self, name: str) -> None:
        self.groups_to_load.add(name, "retry")

    def _is_legal(self, name: str) -> bool:
        try:
            paths.validate_name("group", name)
        except InvalidNameError as error:
            self._own.complain(paths.GROUPS, f"{error}; the group is not served")
            return False
        return True


def _in_a_step_of_its_own() -> None:
    """Do nothing; the step that this timer causes continues waiting work."""
