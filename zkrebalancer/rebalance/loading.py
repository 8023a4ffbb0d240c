"""Loads a group into the coordinator: creates missing nodes, then drives a `GroupReader` in limited steps.

If a group was deleted in use and created again, it is read once the leases of its former members are over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from zkrebalancer.protocol import cluster_nodes, paths, settings
from zkrebalancer.protocol.calls import Children, Content, Create, Get, ListChildren, ReadEach, Reply
from zkrebalancer.rebalance.leadership import Leadership
from zkrebalancer.rebalance.problems import expected_refusals
from zkrebalancer.rebalance.reader import GroupReader, Stage
from zkrebalancer.rebalance.reads import Reads
from zkrebalancer.rebalance.scheduler import ANY, PartScheduler
from zkrebalancer.rebalance.view import GroupView

MAX_READS_PER_STEP = 500  # so that no other group waits long for its turn
MAX_NOTED = 2_000  # characters of a reply whose handling fails


class Loading:
    """One reading at a time. Each stage is pipelined; the next one starts when all replies have arrived."""

    def __init__(
        self,
        scheduler: PartScheduler,
        view: GroupView,
        leadership: Leadership,
        done: Callable[[GroupReader], None],
    ) -> None:
        """`done(reader)` is called with what was read."""
        self._scheduler = scheduler
        self._view = view
        self._leadership = leadership
        self._former_lives = leadership.former_lives
        self._done = done
        self._stages: Iterator[Stage] = iter(())  # that are still to be read
        self._reads: list[Reads] = []  # of this stage, not requested yet, the next ones last
        self._missing_replies = 0
        self.children: tuple[str, ...] = ()  # of the group's node
        self._reader: GroupReader | None = None  # while it reads: what it has is as large as the group

    def begin(self) -> None:
        """Read everything, and forget a reading in progress."""
        known = self._view.settings if self._view.created_zxid else settings.UNKNOWN
        self._reader = GroupReader(self._view.group, self._view.topics, known, watch=True)
        self._stages = iter(self._reader.stages())
        self._missing_replies = 0
        self._leadership.loading.add(self._view.group)
        self._list()

    def _list(self) -> None:
        self._scheduler.ask(ListChildren(paths.group(self._view.group), watch=True), self._listed)

    def _listed(self, reply: Reply) -> None:
        """Create missing child nodes, then start reading."""
        group = self._view.group
        self.children = reply.names if isinstance(reply, Children) else ()
        if not isinstance(reply, Children):
            self._note_gone()
        elif "generation" in reply.names:
            self._former_lives.begin(group)
            self._complete(reply, 0)
        elif wait_us := self._former_lives.wait_us(group, self._view):
            text = "was deleted while it may have had members, and created again; it waits for their leases"
            self._scheduler.warn(f"{text} ({wait_us / 1e6:.1f} s)")
            self._leadership.loading.discard(group)  # so that another one can be read meanwhile
            self._scheduler.wake("former-life", self._scheduler.now.mono_us + wait_us, self._list)
        else:
            self._scheduler.ask(Get(paths.SERVED), self._served_read, reply, expected=ANY)

    def _note_gone(self) -> None:
        self._leadership.gone.add(self._view.group)  # the list of groups shows whether it is created again
        self._leadership.loading.discard(self._view.group)

    def _served_read(self, reply: Reply, children: Children) -> None:
        """Begin with 0 only if there can have been no group of this name, also not in the tree before a restore."""
        served = (reply.content, reply.stat.created_zxid) if isinstance(reply, Content) else (b"", 0)
        if served[0] or self._former_lives.was_served(self._view.group):
            self._scheduler.ask(Get(paths.group(self._view.group)), self._created_again, children, served)
        else:
            self._complete(children, 0)

    def _created_again(self, reply: Reply, children: Children, served: tuple[bytes, int]) -> None:
        """Continue its generation from the transaction that created it, which is above all former ones."""
        if isinstance(reply, Content):
            self._complete(children, cluster_nodes.first_generation(*served, reply.stat.created_zxid))
        else:
            self._note_gone()

    def _complete(self, reply: Children, generation: int) -> None:
        group = self._view.group
        nodes = [Create(f"{paths.group(group)}/{c}") for c in paths.GROUP_CHILDREN if c not in reply.names]
        if "generation" not in reply.names:
            # Beside `given`, it was deleted in this life: unreadable, it goes on from the id of its own transaction.
            content = b"" if "given" in reply.names else cluster_nodes.encode_counter(generation)
            nodes.append(Create(paths.generation(group), content))
        if "incarnations" not in reply.names:
            nodes.append(Create(paths.incarnations(group)))
        if "given" not in reply.names:
            # Records that were deleted in a served group prove nothing: their mark stays empty until all are written.
            is_new = "generation" not in reply.names
            nodes.append(Create(paths.given(group), cluster_nodes.encode_counter(generation) if is_new else b""))
        if nodes:
            self._scheduler.write(nodes, self._created)
        else:
            self._next_stage()

    def _created(self, _reply: Reply) -> None:
        self._list()

    def _next_stage(self) -> None:
        stage = next(self._stages, None)
        if stage is not None:
            self._reads = [reads for reads in reversed(stage()) if reads.size]
            self._ask()
            return
        reader, self._reader = self._reader, None
        if reader is None:
            raise AssertionError(f"group {self._view.group} was read twice")
        reader.finish()
        self._leadership.loading.discard(self._view.group)
        if not reader.exists:
            self._note_gone()
        self._done(reader)

    def _ask(self) -> None:
        """Request as much as one step allows; the stage is over when everything is answered."""
        room = MAX_READS_PER_STEP
        while self._reads and room:
            reads = self._reads.pop()
            if reads.size > room:
                reads, later = reads.split(room)
                self._reads.append(later)
            self._make(reads)
            room -= reads.size
            self._missing_replies += reads.size
        if self._reads:
            self._scheduler.wake_soon("loading", self._ask)
        elif not self._missing_replies:
            self._next_stage()

    def _make(self, reads: Reads) -> None:
        expected = expected_refusals(reads.first_path)
        if reads.names is None:
            call = reads.kind(reads.path, reads.watch)
            self._scheduler.ask(call, self._read, reads.handle, expected=expected)
        else:
            each = ReadEach(reads.kind, reads.path, reads.names, reads.watch)
            self._scheduler.ask_each(each, (self._read_some, self._read, reads.handle), expected)

    def _read(self, reply: Reply, handle: Callable[..., None], *name: str) -> None:
        handle(*name, reply)
        self._handled(1)

    def _read_some(self, replies: Sequence[Reply], handle: Callable[[str, Reply], None], names: Sequence[str]) -> None:
        for name, reply in zip(names, replies, strict=True):
            try:
                handle(name, reply)
            except Exception as error:  # its report shows the row's first replies only
                error.add_note(f"{name}: {reply!r:.{MAX_NOTED}}")
                raise
        self._handled(len(replies))

    def _handled(self, count: int) -> None:
        self._missing_replies -= count
        if not self._missing_replies and not self._scheduler.has_timer("loading"):
            self._next_stage()
