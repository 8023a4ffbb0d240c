"""One coordinator process: a `Coordinator` for each shard of groups, on one ZooKeeper session.

It reads how many shards there are, gives each machine the answers and watch events that concern it, and tells it
whether this host should lead its shard. With one shard there is one machine, which gets every event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from zkrebalancer.protocol import calls, paths, shards
from zkrebalancer.protocol.calls import (
    Children,
    Content,
    Create,
    Delete,
    Done,
    Get,
    ListChildren,
    Multi,
    Refusal,
    Refused,
    Reply,
    Sync,
    Watched,
)
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.requests import DEFAULT_LIMIT, RequestLimit
from zkrebalancer.protocol.shards import Number, ShardHost, shard_of
from zkrebalancer.rebalance.coordinator import Coordinator
from zkrebalancer.rebalance.deadlines import Deadlines
from zkrebalancer.rebalance.effects import (
    Computed,
    Effect,
    Event,
    HandOver,
    LoadsRead,
    Now,
    Numbers,
    Request,
    RequestEach,
    Retire,
    ShutDown,
    Stand,
    Stopped,
    Tick,
)
from zkrebalancer.rebalance.election import LOOK_INTERVAL_US, ElectionState, Identity
from zkrebalancer.rebalance.scheduler import ANY, Scheduler, pause_us
from zkrebalancer.rebalance.table import table

OWNER = "/shards"  # no group has such a name
PATIENCE_US = 10_000_000  # without a leader; then the next host in the order of hashes stands for election
MAX_TURNS = 6  # of others; then all further hosts stand at once, because nodes of other programs may be before them
MAX_HOSTS = 100  # that count; to share 200 shards among them takes 13 ms
GATHER_US = 500_000  # after a change of the number, until all hosts have registered
SHARE_INTERVAL_US = 200_000  # until the next shard is given away, if the last one has a leader by then


class AllShards:
    """The coordinators of one process."""

    def __init__(
        self,
        identity: Identity,
        weighing: frozenset[str] = frozenset(),
        limit: RequestLimit = DEFAULT_LIMIT,
        capacity: int = 1,
    ) -> None:
        """Wait for the first `Connected`. `capacity`: this host's share; for the others, see `Coordinator`."""
        self.identity = identity
        self._weighing, self._limit, self._capacity = weighing, limit, capacity
        self._numbers = Numbers()
        self.scheduler = Scheduler(limit, numbers=self._numbers)
        self._own = self.scheduler.part(OWNER)
        self.machines: Sequence[Coordinator] = ()
        self._callers: dict[int, Coordinator] = {}  # call under way -> whose it is, if not this object's
        self._number: tuple[Number, int] | None = None  # with the version of its node
        self.damage: str | None = None  # why the number cannot be read now
        self._connected: calls.Connected | None = None
        self._doubted: int | None = None  # version of the node that named one shard beside the barrier of several
        self._tries = 0  # to read the number or the hosts, in a row
        self._hosts: dict[str, ShardHost | None] = {}  # node -> host, None if its node is invalid
        self._awaited_hosts: set[str] = set()  # nodes that are listed and not read yet
        self._order: dict[int, list[str]] = {}  # shard -> hosts in the order in which they should lead
        self._are_connected = False  # whether the machines know of the session
        self._keeps_turnover = False
        self._deadlines = Deadlines()  # of the machines, each by the number of its shard
        self._stepped: set[int] = set()  # shards whose machines have had an event in this step
        self._to_stop: list[Coordinator] | None = None  # those that have not resigned yet; None: not stopping

    def keep_turnover(self) -> None:
        """Keep the last changes of owners from now on, for people."""
        self._keeps_turnover = True
        for machine in self.machines:
            machine.turnover.is_kept = True

    # Events and effects ---------------------------------------------------------------------------------------------

    def step(self, event: Event, now: Now) -> list[Effect]:
        """Handle one event; return the effects to perform, in order."""
        self.scheduler.now = now
        self._stepped.clear()
        self.scheduler.run_next_due()
        if isinstance(event, calls.Replied | calls.RepliedAll):
            self._replied(event)
        elif isinstance(event, Watched):
            self._watched(event)
        elif isinstance(event, Computed | LoadsRead):
            self._feed(event, self._of_group(event.group))
        elif isinstance(event, calls.Connected):
            self._begin_session(event)
        elif isinstance(event, calls.Suspended | calls.Lost):
            self._end_session(event)
        elif isinstance(event, ShutDown):
            self._shut_down()
        elif not isinstance(event, Tick):
            raise TypeError(f"not an event: {event!r}")
        self._run_due()
        return self.scheduler.take_effects()

    def next_deadline_us(self) -> int | None:
        """Return when there is work next."""
        known = self.scheduler.next_deadline_us(), self._deadlines.first_us()
        return min((at_us for at_us in known if at_us is not None), default=None)

    def _run_due(self) -> None:
        """Give a step to the machine whose timer was due first, because events of others could keep it waiting."""
        due = self._deadlines.due(self.scheduler.now.mono_us, but=self._stepped)
        if due is not None:
            self._feed(Tick(), [self.machines[due]])

    def _feed(self, event: Event, machines: Sequence[Coordinator]) -> None:
        for machine in machines:
            self._stepped.add(machine.shard.number)
            effects = machine.step(event, self.scheduler.now)
            self._deadlines.set(machine.shard.number, machine.scheduler.next_deadline_us())
            for effect in effects:
                if isinstance(effect, Request):
                    self._callers[effect.call_id] = machine
                elif isinstance(effect, RequestEach):
                    self._callers.update(dict.fromkeys(effect.ids, machine))
                elif isinstance(effect, Stopped):
                    self._stop_next(machine)
                    continue
                self.scheduler.effects.append(effect)

    def _replied(self, event: calls.Replied | calls.RepliedAll) -> None:
        """Give each machine its replies as one event; after a new number, there are other machines."""
        found = event.replies if isinstance(event, calls.RepliedAll) else (event,)
        replies = [one for row in found for one in self._of_one_caller(row)]
        for one in [one for one in replies if one[0] not in self._callers]:
            self.scheduler.answer_all(one)
        of_machines: dict[Coordinator, list[calls.Replied | calls.RepliedInRow]] = {}
        for one in replies:
            machine = {self._callers.pop(call_id, None) for call_id in one.ids}.pop()
            if machine is not None:
                of_machines.setdefault(machine, []).append(one)
        for machine, own in of_machines.items():
            self._feed(calls.RepliedAll(tuple(own)), [machine])

    def _of_one_caller(self, row: calls.Replied | calls.RepliedInRow) -> Iterable[calls.Replied | calls.RepliedInRow]:
        """Return a row of replies as it is if one machine has made all of its calls, else each reply alone."""
        return (row,) if len({self._callers.get(call_id) for call_id in row.ids}) == 1 else row.each()

    def _watched(self, event: Watched) -> None:
        path = event.path
        if path in {paths.SHARDS, paths.COORDINATOR}:  # there is no watch on a node that is missing
            self._read_number()
        elif path == paths.SHARD_HOSTS:
            self._list_hosts()
        if path.startswith(paths.GROUPS + "/"):
            self._feed(event, self._of_group(path.split("/", 4)[3]))
        elif path.startswith(paths.SHARDS):
            self._feed(event, [one for one in self.machines if one.shard.coordinator == path])
        else:
            self._feed(event, self.machines)

    def _of_group(self, group: str) -> Sequence[Coordinator]:
        """Return the machine of a group; none while the number of shards is unknown."""
        if len(self.machines) <= 1:
            return self.machines
        return [self.machines[shard_of(group, len(self.machines))]]

    # The session ----------------------------------------------------------------------------------------------------

    def _begin_session(self, event: calls.Connected) -> None:
        self._connected = event
        if self._to_stop is None:
            self._own.forget()
            self._read_number()
            self._hosts_may_differ()
        if self._are_connected:
            self._feed(event, self.machines)

    def _end_session(self, event: calls.Suspended | calls.Lost) -> None:
        self._connected = None
        if self._to_stop is None:
            self._own.forget()
        self._feed(event, self.machines)

    # How many shards there are --------------------------------------------------------------------------------------

    def _read_number(self) -> None:
        """Read it after a `sync`, because a server that lags may still have the former number."""
        if self._to_stop is None:
            self._own.ask(Sync(paths.CONSUMERS), self._synced, expected=ANY)

    def _synced(self, _reply: Reply) -> None:
        self._own.ask(Get(paths.SHARDS, watch=True), self._number_read, expected=ANY)

    def _number_read(self, reply: Reply) -> None:
        self._look_again()
        number, version = Number(), -1
        if isinstance(reply, Content):
            try:
                number, version = shards.decode_number(reply.content), reply.stat.version
            except NodeContentError as error:
                self._note_damage(error)
                return
        elif isinstance(reply, Refused) and reply.refusal is not Refusal.NO_NODE:
            self.damage = None
            self._own.note_refused(Get(paths.SHARDS), reply.refusal)
            self._retry("number", self._read_number)
            return
        if number.shards == 1 and self._is_leaderless:
            self._own.ask(Get(shards.BARRIER), self._barrier_read, number, version, expected=ANY)
        else:
            self._adopt(number, version)

    @property
    def _is_leaderless(self) -> bool:
        """Whether the only shard is not known to have a leader, also if there was none or several shards before."""
        return len(self.machines) != 1 or not self.machines[0].coordinator_elector.knows_leader

    def _barrier_read(self, reply: Reply, number: Number, version: int) -> None:
        """Look for what keeps coordinators from leading while there are several shards, although there is one.

        If the number has not changed around this look, it was lost.
        """
        if not isinstance(reply, Content):
            self._adopt(number, version)
        elif self._doubted != version:
            self._doubted = version
            self._read_number()
        else:
            self._note_damage(NodeContentError("it is missing" if version < 0 else "it is empty"))
            if version < 0 and self.machines:  # with all nodes of its leaders
                self._end_machines()
                self.machines = ()
            self._retry("number", self._read_number)

    def _note_damage(self, error: NodeContentError) -> None:
        self.damage = shards.damaged(error)
        self._own.complain(paths.SHARDS, self.damage)

    def _adopt(self, number: Number, version: int) -> None:
        self.damage, self._doubted, self._tries = None, None, 0
        before = self._number
        is_same = before is not None and number.shards == 1 == before[0].shards  # then it has no version to check
        if not self.machines or (before != (number, version) and not is_same):
            self._become(number, version)

    def _look_again(self) -> None:
        self._own.wake("number", self.scheduler.now.mono_us + LOOK_INTERVAL_US, self._read_number)

    def _retry(self, name: str, again: Callable[[], None]) -> None:
        self._own.wake(name, self.scheduler.now.mono_us + pause_us(self._tries), again)
        self._tries += 1

    def _become(self, number: Number, version: int) -> None:
        """Replace all machines: leaders of the former number can no longer write."""
        is_change = self._number is not None
        self._end_machines()
        self._look_again()
        self._number = number, version
        self.machines = tuple(
            Coordinator(self.identity, self._weighing, self._limit, shard, self._numbers)
            for shard in number.all(version)
        )
        for machine in self.machines:  # each of which reads the same topics
            machine.scheduler.complaints = self.scheduler.complaints
        if self._keeps_turnover:
            self.keep_turnover()
        self._are_connected = number.shards == 1
        if is_change:
            self._own.warn(f"there are {number.shards} shards of groups now")
        if number.shards == 1:
            self._feed(self._session, self.machines)
            return
        if is_change:
            self._own.wake("hosts", self.scheduler.now.mono_us + GATHER_US, self._list_hosts)
        self._register()

    def _end_machines(self) -> None:
        self._feed(Retire(), self.machines)
        self._callers.clear()
        self._deadlines.clear()
        self._own.forget()
        self._are_connected, self._order = False, {}
        self._hosts.clear()

    @property
    def _session(self) -> calls.Connected:
        if self._connected is None:
            raise AssertionError("answered without a session")
        return self._connected

    # Who should lead which shard ------------------------------------------------------------------------------------

    def _hosts_may_differ(self) -> None:
        if len(self.machines) > 1:
            self._register()

    @property
    def _node(self) -> str:
        return f"{paths.SHARD_HOSTS}/{self.identity.brokerid}-{self._session.session_id:x}"

    def _register(self) -> None:
        content = shards.encode_host(ShardHost(self.identity.brokerid, self.identity.host, self._capacity))
        self._own.ask(Multi((Create(self._node, content, ephemeral=True),)), self._registered, expected=ANY)

    def _registered(self, reply: Reply) -> None:
        """Go on once the node exists; its container is missing if somebody has deleted it."""
        if not isinstance(reply, Done | Refused):
            raise TypeError(f"not an answer to a transaction: {reply!r}")
        if isinstance(reply, Done) or reply.refusal is Refusal.NODE_EXISTS:
            if not self._own.has_timer("hosts"):
                self._list_hosts()
        elif reply.refusal is Refusal.NO_NODE:
            self._own.ask(Multi((Create(paths.SHARD_HOSTS),)), self._container_created, expected=ANY)
        else:
            self._own.note_refused(Create(self._node), reply.refusal)
            self._retry("register", self._register)

    def _container_created(self, reply: Reply) -> None:
        if isinstance(reply, Refused) and reply.refusal is not Refusal.NODE_EXISTS:
            self._retry("register", self._register)
        else:
            self._register()

    def _list_hosts(self) -> None:
        if self._to_stop is None and len(self.machines) > 1:
            self._own.ask(ListChildren(paths.SHARD_HOSTS, watch=True), self._hosts_listed, expected=ANY)

    def _hosts_listed(self, reply: Reply) -> None:
        if not isinstance(reply, Children):
            self._retry("hosts", self._register)
            return
        if self._node.rpartition("/")[2] not in reply.names:
            self._register()
            return
        names = sorted(reply.names)[:MAX_HOSTS]
        if len(names) < len(reply.names):
            text = f"{paths.SHARD_HOSTS}: of {len(reply.names)} nodes, {MAX_HOSTS} count"
            self._own.complain(paths.SHARD_HOSTS, text)
        self._hosts = {name: self._hosts[name] for name in names if name in self._hosts}
        self._awaited_hosts = set(names) - self._hosts.keys()
        for name in sorted(self._awaited_hosts):
            self._own.ask(Get(f"{paths.SHARD_HOSTS}/{name}"), self._host_read, name, expected=ANY)
        self._share_out()

    def _host_read(self, reply: Reply, name: str) -> None:
        if name in self._awaited_hosts:
            self._awaited_hosts.remove(name)
            if isinstance(reply, Content):
                self._hosts[name] = self._decoded(name, reply)
            self._share_out()

    def _decoded(self, name: str, reply: Content) -> ShardHost | None:
        try:
            if not reply.stat.ephemeral_owner:
                raise NodeContentError("it belongs to no session")
            return shards.decode_host(reply.content)
        except NodeContentError as error:
            path = f"{paths.SHARD_HOSTS}/{name}"
            self._own.complain(path, f"{path}: {error}; it gets no shards")
            return None

    def _share_out(self) -> None:
        """Tell the machines how long to wait for other hosts, once all hosts are known."""
        if self._awaited_hosts:
            return
        capacities = {str(host.brokerid): host.capacity for host in self._hosts.values() if host is not None}
        order = table(len(self.machines), {**capacities, self._me: self._capacity})
        if order != self._order:
            self._order = order
            for shard, machine in enumerate(self.machines):
                self._feed(Stand(min(order[shard].index(self._me), MAX_TURNS) * PATIENCE_US), [machine])
        if not self._are_connected:
            self._are_connected = True
            self._feed(self._session, self.machines)
        self._own.wake_soon("give away", self._give_away)

    @property
    def _me(self) -> str:
        return str(self.identity.brokerid)

    def _give_away(self) -> None:
        """Give away one shard that another host should lead, once every shard has a leader."""
        electors = [machine.coordinator_elector for machine in self.machines]
        other = [
            shard
            for shard, elector in enumerate(electors)
            if elector.state is ElectionState.LEADING and not elector.stood_in and self._order[shard][0] != self._me
        ]
        are_led = all(elector.knows_leader for elector in electors)
        if other and are_led:
            self._feed(HandOver(), [self.machines[other[0]]])
        pause = SHARE_INTERVAL_US if other or not are_led else LOOK_INTERVAL_US
        self._own.wake("give away", self.scheduler.now.mono_us + pause, self._give_away)

    # The end --------------------------------------------------------------------------------------------------------

    def _shut_down(self) -> None:
        """Leave the list of hosts, then resign shard by shard."""
        if self._to_stop is not None:
            return
        self._own.forget()
        self._to_stop = list(self.machines)
        if len(self.machines) > 1 and self._connected is not None:
            self._own.ask(Multi((Delete(self._node),)), self._unregistered, expected=ANY, whatever_comes=True)
        else:
            self._stop_next(None)

    def _unregistered(self, _reply: Reply) -> None:
        self._stop_next(None)

    def _stop_next(self, stopped: Coordinator | None) -> None:
        if self._to_stop is None:
            raise AssertionError("a machine has stopped that nobody has asked to")
        if stopped is not None:
            self._to_stop.remove(stopped)
        if self._to_stop:
            self._feed(ShutDown(), self._to_stop[:1])
        else:
            self._own.do(Stopped())
