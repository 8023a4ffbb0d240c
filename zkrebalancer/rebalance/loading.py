"""Loads a group into the coordinator: creates missing nodes, then drives a `GroupReader` in limited steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from zkrebalancer.protocol import cluster_nodes, paths
from zkrebalancer.protocol.calls import Children, Create, ListChildren, Refusal, Refused, Reply
from zkrebalancer.rebalance.reader import GroupReader, LazyRead, Stage, expected_refusals
from zkrebalancer.rebalance.scheduler import PartScheduler
from zkrebalancer.rebalance.view import GroupView

MAX_READS_PER_STEP = 500  # so that no other group waits long for its turn


class Loading:
    """One reading at a time; each stage is pipelined, the next begins when every reply is there."""

    def __init__(
        self, scheduler: PartScheduler, view: GroupView, done: Callable[[GroupReader], None], gone: Callable[[], None]
    ) -> None:
        """`done(reader)` is called with what was read, `gone()` if the group's node is not there."""
        self._scheduler = scheduler
        self._view = view
        self._done = done
        self._gone = gone
        self._stages: deque[Stage] = deque()
        self._reads: deque[LazyRead] = deque()  # of this stage, not asked for yet
        self._missing_replies = 0
        self._reader = GroupReader(view.group, view.topics)

    def begin(self) -> None:
        """Read everything; whatever was being read is forgotten."""
        self._reader = GroupReader(self._view.group, self._view.topics, self._view.settings, watch=True)
        self._stages = deque(self._reader.stages())
        self._missing_replies = 0
        self._list()

    def _list(self) -> None:
        self._scheduler.ask(ListChildren(paths.group(self._view.group)), self._listed)

    def _listed(self, reply: Reply) -> None:
        """Create the child nodes that are missing, then begin to read."""
        group = self._view.group
        if not isinstance(reply, Children):
            if reply == Refused(Refusal.NO_NODE):
                self._gone()  # the list of groups shows whether it comes back
            return
        nodes = [Create(f"{paths.group(group)}/{c}") for c in paths.GROUP_CHILDREN if c not in reply.names]
        if "generation" not in reply.names:
            nodes.append(Create(paths.generation(group), cluster_nodes.encode_counter(0)))
        if "given" not in reply.names:
            nodes.append(Create(paths.given(group), cluster_nodes.encode_counter(0)))
        if nodes:
            self._scheduler.write(nodes, self._created)
        else:
            self._next_stage()

    def _created(self, _reply: Reply) -> None:
        self._list()

    def _next_stage(self) -> None:
        if self._stages:
            self._reads = deque(self._stages.popleft()())
            self._ask()
            return
        self._reader.finish()
        if not self._reader.exists:
            self._gone()
        self._done(self._reader)

    def _ask(self) -> None:
        """Ask for as much as goes into one step; the stage is over when all of it is answered."""
        asked = min(len(self._reads), MAX_READS_PER_STEP)
        for _ in range(asked):
            call, handle = self._reads.popleft()()
            self._scheduler.ask(call, self._read, handle, expected=expected_refusals(call))
        self._missing_replies += asked
        if self._reads:
            self._scheduler.wake_soon("loading", self._ask)
        else:
            self._maybe_go_on()

    def _read(self, reply: Reply, handle: Callable[[Reply], None]) -> None:
        handle(reply)
        self._missing_replies -= 1
        self._maybe_go_on()

    def _maybe_go_on(self) -> None:
        if not self._missing_replies and not self._scheduler.is_awake_planned("loading"):
            self._next_stage()
