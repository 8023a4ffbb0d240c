"""A group with a consistent region: the leader is real, and its members do what a test says."""

from __future__ import annotations

from collections.abc import Mapping

from tests.support.groups import events
from tests.support.world import GROUP, World
from tests.support.zk_model import Session
from zkrebalancer.protocol import paths
from zkrebalancer.protocol import settings as group_settings
from zkrebalancer.protocol.calls import Create, Delete, Done, Multi, Operation, SetContent
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.requests import DEFAULT_LIMIT, RequestLimit
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance.region import Region
from zkrebalancer.region import documents
from zkrebalancer.region.documents import CHECKPOINT, Contribution, Initial, Merge, Order, Request, Settings

SETTINGS = Settings("billing", "group", every_ms=10_000, reset_ms=60_000)
ORDER = paths.region(GROUP, "order")


class RegionWorld:
    """One group `g` with one consumer for each member: member `a` is the consumer `a-1`."""

    def __init__(
        self, *names: str, partitions: int = 4, settings: Settings = SETTINGS, limit: RequestLimit = DEFAULT_LIMIT
    ) -> None:
        """Let the group settle, then make the region and register its members."""
        self.world = World()
        self.world.set_topic("t", partitions)
        self.world.create_group(group_settings.encode(GroupSettings()))
        self.world.add_coordinator(limit=limit)
        for name in names:
            self.world.add_agent(name)
        self.world.pass_time(2_000)
        self.sessions: dict[str, Session] = {}
        children = [Create(paths.region(GROUP, kind)) for kind in paths.REGION_CHILDREN]
        self.write(Create(paths.region(GROUP), documents.encode_settings(settings)), *children)
        for name in names:
            self.register(name)
        self.run()

    # ---- time

    def run(self) -> None:
        self.world.run()

    def pass_time(self, milliseconds: int) -> None:
        self.world.pass_time(milliseconds)

    def open_checkpoint(self) -> int:
        """Let the next checkpoint become due; return its id."""
        self.pass_time(SETTINGS.every_ms)
        opened = self.order().open
        assert opened is not None
        assert opened.kind == CHECKPOINT
        return opened.id

    def complete_checkpoint(self, offset: int = 5) -> int:
        """Complete the next checkpoint: all members continue at this offset everywhere; return its id."""
        number = self.open_checkpoint()
        self.answer_all(offset)
        assert self.order().complete == number
        return number

    # ---- what others do

    def write(self, *operations: Operation, session: Session | None = None) -> None:
        done = self.world.zk.perform(Multi(operations), 0 if session is None else session.session_id)
        assert isinstance(done, Done), done

    def register(self, name: str) -> None:
        session = self.sessions[name] = self.world.zk.open()
        self.write(Create(paths.region(GROUP, "members", name), ephemeral=True), session=session)

    def lose(self, name: str) -> None:
        """End a member's session, and its consumer's."""
        self.world.zk.end(self.sessions.pop(name))
        self.world.kill_agent(self.world.agents[name])

    def ask(self, kind: str, member: str = "a", reason: str = "") -> None:
        path = paths.region(GROUP, "requests", f"{kind}-")
        self.write(Create(path, documents.encode_request(Request(kind, member, reason)), sequence=True))

    def answer(
        self,
        name: str,
        offsets: Mapping[TopicPartition, int],
        piece: int = 0,
        pieces: int = 1,
        number: int | None = None,
    ) -> None:
        """Store one piece of a member's answer to the open round, or to round `number`."""
        round_ = self._open_id() if number is None else number
        part = Contribution(round_, piece, pieces, f"{name}-1", offsets, {"t": "id-1"})
        self.contribute(f"{name}.{piece}", documents.encode_contribution(part), round_)

    def contribute(self, node: str, content: bytes, number: int | None = None) -> None:
        above = self._open_id() if number is None else number
        self.write(Create(paths.region(GROUP, "contributions", f"{above}/{node}"), content))

    def answer_all(self, offset: int = 5) -> None:
        """Let each registered member answer for what its consumer holds."""
        for name in list(self.sessions):
            self.answer(name, self.held(name, offset))
        self.run()

    def held(self, name: str, offset: int) -> dict[TopicPartition, int]:
        return dict.fromkeys(self.world.owned().get(f"{name}-1", {}), offset)

    def store_initial(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Note where the region has begun to read."""
        path = paths.region(GROUP, "initial", topic)
        nodes = [
            Create(f"{path}/{number}", documents.encode_initial(Initial(at, "id-1"))) for number, at in offsets.items()
        ]
        self.write(Create(path), *nodes)

    def store_offsets(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Store offsets of the group, as consumers do that stop reading."""
        path = paths.offsets(GROUP, topic)
        self.write(
            *([] if path in self.world.zk.nodes else [Create(path, b"id-1")]),
            *(Create(f"{path}/{number}", str(at).encode()) for number, at in offsets.items()),
        )

    def replace_leader(self) -> None:
        self.world.kill_coordinator(self.world.leader())
        self.world.add_coordinator()
        self.run()

    def delete(self, *names: str) -> None:
        self.write(*(Delete(name) for name in names))

    def set(self, path: str, content: bytes) -> None:
        self.write(SetContent(path, content))

    # ---- what is stored

    @property
    def region(self) -> Region:
        return self.world.leader().machine.groups[GROUP].region

    def _open_id(self) -> int:
        opened = self.order().open
        assert opened is not None
        return opened.id

    def order(self) -> Order:
        return documents.decode_order(self.world.zk.nodes[ORDER].content)

    def orders(self) -> list[Order]:
        """Return every order that was stored, oldest first."""
        stored = [operation for operations in self.world.zk.transactions for operation in operations]
        contents = [one.content for one in stored if isinstance(one, Create | SetContent) and one.path == ORDER]
        return [documents.decode_order(content) for content in contents if content.startswith(b'{"version"')]

    def zxid(self, name: str) -> int:
        """Return the id of the transaction that registered a member."""
        return self.world.zk.nodes[paths.region(GROUP, "members", name)].created_zxid

    def children(self, kind: str) -> list[str]:
        return self.world.zk.children(paths.region(GROUP, kind))

    def merge(self) -> Merge:
        """Return the last complete checkpoint, of which nothing else may be stored."""
        order = self.order()
        names = [f"{order.complete}.{piece}" for piece in range(order.pieces)]
        assert sorted(names) == self.children("merged")
        nodes = self.world.zk.nodes
        parts = [documents.decode_merge(nodes[paths.region(GROUP, "merged", name)].content) for name in names]
        return documents.joined_merge(parts)

    def offsets(self, topic: str) -> dict[int, str]:
        """Return the stored offsets of the group."""
        path = paths.offsets(GROUP, topic)
        return {
            int(number): self.world.zk.nodes[f"{path}/{number}"].content.decode()
            for number in self.world.zk.children(path)
        }

    def events(self, kind: str) -> list[dict[str, object]]:
        return events(self.world, f"region_{kind}")

    def warnings(self) -> list[str]:
        return [text for text in self.world.warnings if "region" in text]
