"""`coordinator_elector`: one ephemeral node decides which coordinator leads, and a counter fences its later writes.

Creating the leader's node and raising the epoch are one transaction, so a leader always knows the version of the
epoch node that is its own. After a lost reply it leads only if the node belongs to this session and was created by the
transaction that raised the epoch last.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

from zkrebalancer.protocol import cluster_nodes, paths
from zkrebalancer.protocol.calls import (
    Check,
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
    SetContent,
    Stat,
    Sync,
)
from zkrebalancer.protocol.cluster_nodes import NOBODY, CoordinatorAddress
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.shards import WHOLE, Shard
from zkrebalancer.rebalance.scheduler import ANY, MAX_PAUSE_US, Scheduler, pause_us

GUARD = 2  # the index of `Shard.guards` in the transaction of an election
OWNER = "/election"  # no group has such a name
LOOK_INTERVAL_US = 60_000_000  # of a standby; ZooKeeper sends no watch events to clients without the right to read
LEADERLESS_LOOK_INTERVAL_US = 500_000  # of a host that waits for another one to lead
RETRY_US = 200_000  # after an unexpected answer, such as a node that changed between two reads


class ElectionState(Enum):
    """This coordinator's role."""

    DISCONNECTED = "disconnected"
    ELECTING = "electing"
    STANDBY = "standby"
    LEADING = "leading"
    RESIGNED = "resigned"


@dataclass(frozen=True, slots=True)
class Identity:
    """How this coordinator identifies itself in its node."""

    brokerid: int
    host: str
    http: str | None = None


class CoordinatorElector:
    """Runs for leadership whenever there is no leader; calls back when it wins and when its leadership ends."""

    def __init__(
        self,
        scheduler: Scheduler,
        identity: Identity,
        won: Callable[[int, int], None],
        lost: Callable[[str], None],
        shard: Shard = WHOLE,
    ) -> None:
        """`won(epoch, version of the epoch node)` begins a leadership, `lost(reason)` ends it."""
        self._scheduler = scheduler.part(OWNER)
        self._identity = identity
        self._won = won
        self._lost = lost
        self._shard = shard
        self.patience_us = 0  # how long there has to be no leader before it runs, because another host should lead
        self._leaderless_since_us: int | None = None
        self._is_handing_over = False
        self.stood_in = False  # whether it leads because the host that should lead did not
        self.state = ElectionState.DISCONNECTED
        self.session_id = 0
        self.epoch = 0
        self._epoch_version = -1
        self._stored_epoch = 0  # as it was read; `epoch` is that of the leadership
        self._epoch_stat: Stat | None = None
        self.unfinished_restore: str | None = None  # what keeps all coordinators from leading
        self._last_problem = ""  # logged once, not at each try
        self._behind_tries = 0  # elections in a row that failed because of the number of shards
        self._is_behind = True  # since the connection began, no sync has succeeded
        self._unsynced = 0  # tries in a row

    def connected(self, session_id: int) -> None:
        """Run for leadership in a usable session, or check that this coordinator still leads."""
        if self.session_id not in {0, session_id}:
            self.session_lost()
        self.session_id, self._is_behind = session_id, True
        if self.state is not ElectionState.RESIGNED:
            self.elect()

    def suspended(self) -> None:
        """Keep a leadership after the connection broke: it lasts as long as the session, and its writes are fenced."""
        self._forget_election()

    def session_lost(self) -> None:
        """End a leadership, because the session is over, and with it the ephemeral node."""
        self._forget_election()
        self._end("the ZooKeeper session is over", ElectionState.DISCONNECTED)

    def elect(self) -> None:
        """Read which coordinator leads, and try to lead if none does."""
        if self.state is not ElectionState.LEADING:
            self.state = ElectionState.ELECTING
        self._scheduler.forget()
        self._scheduler.ask(Sync(paths.CONSUMERS), self._synced, expected=ANY)

    def resign(self) -> bool:
        """Give up the leadership, so that a standby leads at once; return False if there is nothing to give up."""
        was_leading, self.state = self.state is ElectionState.LEADING, ElectionState.RESIGNED
        self._scheduler.forget()
        if was_leading:
            self._scheduler.ask(self._resignation, self._resigned, expected=ANY, whatever_comes=True)
        return was_leading

    @property
    def knows_leader(self) -> bool:
        """Whether some coordinator leads, as far as is known."""
        is_led = self.state is ElectionState.STANDBY and self._leaderless_since_us is None
        return is_led or self.state is ElectionState.LEADING

    def hand_over(self) -> None:
        """Give up the leadership, because another host should lead, and stand by."""
        if self.state is ElectionState.LEADING and not self._is_handing_over:
            self._is_handing_over = True
            self._scheduler.forget()
            self._scheduler.ask(self._resignation, self._handed_over, expected=ANY)

    @property
    def _resignation(self) -> Multi:
        fence = Check(self._shard.epoch, self._epoch_version)
        return Multi((fence, Delete(self._shard.coordinator)))

    def _handed_over(self, _reply: Reply) -> None:
        self.elect()

    def be_patient(self, patience_us: int) -> None:
        """Change how long it waits for another host to lead; if that is shorter now, look at once."""
        self.stood_in = False
        is_shorter, self.patience_us = patience_us < self.patience_us, patience_us
        if is_shorter and self.state is ElectionState.STANDBY and self._leaderless_since_us is not None:
            self.elect()

    def retire(self, reason: str) -> None:
        """End a leadership, and do nothing from now on, because the shard no longer exists."""
        self._scheduler.forget()
        self._end(reason, ElectionState.RESIGNED)

    def watched(self) -> None:
        """Handle a change of the coordinator's node."""
        if self.state is not ElectionState.RESIGNED:
            self.elect()

    def step_down(self, reason: str) -> None:
        """Stop leading, because a fenced write failed: another coordinator leads."""
        if self.state is not ElectionState.RESIGNED:
            self._end(reason, ElectionState.ELECTING)
            self.elect()

    def _forget_election(self) -> None:
        """Drop awaited replies, except to a resignation, because the process may end after that reply."""
        if self.state is not ElectionState.RESIGNED:
            self._scheduler.forget()

    # The steps of an election ---------------------------------------------------------------------------------------

    def _synced(self, reply: Reply) -> None:
        """Stop leading if a new connection cannot be synced: its reads may lack starts that this leader has sent."""
        if isinstance(reply, Refused):
            text = f"ZooKeeper refuses to sync {paths.CONSUMERS}: {reply.refusal.value}; retried at growing intervals"
            self._scheduler.complain(paths.CONSUMERS, text)
            if self._is_behind:
                self._end("ZooKeeper refuses to sync", ElectionState.ELECTING)
            self._scheduler.wake("retry", self._scheduler.now.mono_us + pause_us(self._unsynced), self.elect)
            self._unsynced += 1
            return
        self._is_behind, self._unsynced = False, 0
        self._scheduler.ask(Get(self._shard.epoch), self._epoch_read)

    def _epoch_read(self, reply: Reply) -> None:
        if isinstance(reply, Content):
            try:
                self._stored_epoch = cluster_nodes.decode_counter("coordinator_epoch", reply.content)
            except NodeContentError as error:
                self._stored_epoch = reply.stat.modified_zxid  # above all former ones, each of which had a write
                text = f"{self._shard.epoch}: {error}; counting on from {self._stored_epoch}"
                self._scheduler.complain(self._shard.epoch, text)
            self._epoch_stat = reply.stat
            self._scheduler.ask(Get(self._shard.coordinator, watch=True), self._coordinator_read)
        else:
            self._scheduler.ask(ListChildren("/"), self._prepare)

    def _prepare(self, reply: Reply) -> None:
        """Create missing nodes, one at a time, because other coordinators may do the same."""
        if not isinstance(reply, Children):
            self._try_again("the chroot does not exist in this ZooKeeper; waiting for it")
            return
        self._create(reply, 0)

    def _create(self, _reply: Reply, position: int) -> None:
        nodes = (
            Create(paths.CONSUMERS),
            Create(paths.GROUPS),
            Create("/brokers"),
            Create(paths.BROKER_TOPICS),
            *([] if self._shard.count == 1 else [Create(paths.shard(self._shard.number))]),
            Create(self._shard.epoch, cluster_nodes.encode_counter(self._shard.first_epoch)),
        )
        if position == len(nodes):
            self.elect()
            return
        self._scheduler.ask(Multi((nodes[position],)), self._create, position + 1)

    def _coordinator_read(self, reply: Reply) -> None:
        stat, self.unfinished_restore = self._epoch_stat, None
        if isinstance(reply, Content) and stat is not None:
            self._leaderless_since_us = None
            if reply.stat.ephemeral_owner == 0:
                self._look_at_persistent(reply.content, stat)
            elif reply.stat.ephemeral_owner != self.session_id:
                self._end("another coordinator leads", ElectionState.STANDBY)
                self._scheduler.wake("look", self._scheduler.now.mono_us + LOOK_INTERVAL_US, self.elect)
            elif reply.stat.created_zxid != stat.modified_zxid:
                self._scheduler.ask(self._removal(stat), self._stale_node_deleted)
            elif self.state is not ElectionState.LEADING:
                self._lead(self._stored_epoch, stat.version)
            else:
                self._is_handing_over = False  # a resignation has failed, or was lost with the connection
        elif isinstance(reply, Refused) and reply.refusal is Refusal.NO_NODE and stat is not None:
            self._end("its node was deleted", ElectionState.ELECTING)
            self._run_in_turn(stat)

    def _run_in_turn(self, stat: Stat) -> None:
        """Run for leadership, or wait until the host that should lead has had its time."""
        now_us = self._scheduler.now.mono_us
        if self._leaderless_since_us is None:
            self._leaderless_since_us = now_us
        wait_us = self._leaderless_since_us + self.patience_us - now_us
        if wait_us <= 0:
            self.stood_in = self.patience_us > 0
            self._run(stat)
            return
        self.state = ElectionState.STANDBY
        self._scheduler.wake("look", now_us + min(wait_us, LEADERLESS_LOOK_INTERVAL_US), self.elect)

    def _look_at_persistent(self, content: bytes, stat: Stat) -> None:
        """Remove a node that belongs to no session, or wait for the restore that made it."""
        with suppress(NodeContentError):
            address = cluster_nodes.decode_coordinator(content)
            if address.brokerid == NOBODY:
                self._scheduler.ask(Get(paths.RESTORE), self._restore_read, address, stat)
                return
        self._remove_copy(stat)

    def _restore_read(self, reply: Reply, address: CoordinatorAddress, stat: Stat) -> None:
        """Wait if a restore is not complete. The node cannot be removed anyway, but this says why."""
        if not isinstance(reply, Content):
            self._remove_copy(stat)
            return
        self.unfinished_restore = cluster_nodes.unfinished_restore(address)
        self._scheduler.complain(paths.RESTORE, self.unfinished_restore)
        self._end("its node was replaced", ElectionState.ELECTING)
        self._scheduler.wake("retry", self._scheduler.now.mono_us + MAX_PAUSE_US, self.elect)

    def _remove_copy(self, stat: Stat) -> None:
        """Remove a node that belongs to no session, such as one from a copied tree: it names no leader."""
        self._scheduler.warn(f"{self._shard.coordinator} belongs to no session; it is removed")
        self._scheduler.ask(self._removal(stat), self._copy_removed)

    def _removal(self, stat: Stat) -> Multi:
        """Return what deletes the node that was read, and none of a later election, which changes the epoch."""
        return Multi((Check(self._shard.epoch, stat.version), Delete(self._shard.coordinator)))

    def _copy_removed(self, reply: Reply) -> None:
        self._end("its node was replaced", ElectionState.ELECTING)
        if isinstance(reply, Refused) and reply.refusal is Refusal.NOT_EMPTY:
            self._scheduler.note_refused(Delete(self._shard.coordinator), reply.refusal)
            self._scheduler.wake("retry", self._scheduler.now.mono_us + MAX_PAUSE_US, self.elect)
        else:
            self.elect()

    def _stale_node_deleted(self, _reply: Reply) -> None:
        self._end("its node belongs to another election", ElectionState.ELECTING)
        self.elect()

    def _run(self, stat: Stat) -> None:
        epoch = self._stored_epoch + 1
        address = CoordinatorAddress(
            self._identity.brokerid, self._identity.host, epoch, self._identity.http, str(self._scheduler.now.epoch_ms)
        )
        transaction = Multi(
            (
                Create(self._shard.coordinator, cluster_nodes.encode_coordinator(address), ephemeral=True),
                SetContent(self._shard.epoch, cluster_nodes.encode_counter(epoch), stat.version),
                *self._shard.guards,
            )
        )
        self._scheduler.ask(transaction, self._ran, epoch, stat.version + 1)

    def _ran(self, reply: Reply, epoch: int, version: int) -> None:
        if isinstance(reply, Done):
            self._lead(epoch, version)
            self._scheduler.ask(Get(self._shard.coordinator, watch=True), self._own_node_read)
        elif isinstance(reply, Refused) and reply.index == GUARD:
            self._wait_for_number()
        elif isinstance(reply, Refused) and reply.refusal in {Refusal.NODE_EXISTS, Refusal.BAD_VERSION}:
            self.elect()  # another coordinator was first
        else:
            self._try_again("the election failed: " + (reply.refusal.value if isinstance(reply, Refused) else ""))

    def _wait_for_number(self) -> None:
        """Try again at growing intervals: whoever knows the present number replaces this machine.

        If its node is damaged, nobody knows it, and `AllShards` logs that.
        """
        self._scheduler.wake("retry", self._scheduler.now.mono_us + pause_us(self._behind_tries), self.elect)
        self._behind_tries += 1

    def _own_node_read(self, reply: Reply) -> None:
        """Keep a watch on the own node, which fires when an operator deletes it."""
        if not (isinstance(reply, Content) and reply.stat.ephemeral_owner == self.session_id):
            self.elect()

    def _lead(self, epoch: int, version: int) -> None:
        self.state, self.epoch, self._epoch_version = ElectionState.LEADING, epoch, version
        self._leaderless_since_us, self._is_handing_over, self._behind_tries = None, False, 0
        self._won(epoch, version)

    def _end(self, reason: str, state: ElectionState) -> None:
        was_leading = self.state is ElectionState.LEADING
        if self.state is not ElectionState.RESIGNED:
            self.state = state
        if was_leading:
            self._lost("another host should lead" if self._is_handing_over else reason)

    def _resigned(self, _reply: Reply) -> None:
        self._lost("asked to stop")

    def _try_again(self, problem: str) -> None:
        if problem != self._last_problem:
            self._scheduler.warn(problem)
        self._last_problem = problem
        self._scheduler.wake("retry", self._scheduler.now.mono_us + RETRY_US, self.elect)
