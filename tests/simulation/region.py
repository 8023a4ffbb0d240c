"""A region in virtual time: the real leader and the real members, on a ZooKeeper in memory, with faults from a seed.

After every complete checkpoint, and at the end, each record is in exactly one state, in exactly one place of it.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable

from tests.simulation.region_parts import Copies, Effects, Log, SimulatedMember, read_order
from tests.support.world import GROUP, World
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Create, Multi
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.requests import DEFAULT_LIMIT, RequestLimit
from zkrebalancer.region import documents
from zkrebalancer.region.documents import Merge, Order, Request, Settings
from zkrebalancer.region.roles import Phase

PARTITIONS = 5
MEMBERS = 3
STEPS = 3_000
QUIET_STEPS = 12_000
FAULTS = {
    "kill": 3,
    "freeze": 3,
    "hang": 3,
    "expire-region": 3,
    "expire-consumer": 3,
    "cut": 8,
    "leader": 3,
    "join": 3,
    "leave": 3,
    "reset": 2,
    "reset-initial": 1,
    "grow": 1,
    "rebalance": 2,
    "unsubscribe": 3,
    "subscribe": 2,
    "group-frozen": 2,
    "group-resumed": 2,
}
TOPICS = ("t", "u")  # members stop reading the second one, and then nobody holds it


class RegionRun:
    """One run."""

    def __init__(self, seed: int, faults: int = 12, limit: RequestLimit = DEFAULT_LIMIT) -> None:
        """Draw everything from the seed."""
        self.draw = random.Random(seed)  # to repeat a run
        self.world = World()
        self.world.has_bugs = False
        self.copies: Copies = {}
        self.log = Log({("t", number): 0 for number in range(PARTITIONS)} | {("u", 0): 0, ("u", 1): 0})
        self.world.set_topic("t", PARTITIONS)
        self.world.set_topic("u", 2)
        self.world.create_group()
        self.configure()
        self.settings = self.new_settings()
        self.members: list[SimulatedMember] = []
        self.names = [f"m{number}" for number in range(MEMBERS + 2)]
        for _ in range(2):
            self.world.add_coordinator(limit=limit)
        for name in self.names[:MEMBERS]:
            self.add(name)
        self.faults = sorted(self.draw.randrange(STEPS) for _ in range(faults))
        self.seen = Counter[str]()
        self.checked = self.opened = 0
        self.moves = 6  # of a coordinator in one step, at most
        self.deleted: set[str] = set()  # topics, whose records are not looked at any more

    def new_settings(self) -> Settings:
        return Settings("billing", "group", every_ms=2_000, reset_ms=40_000)

    def add(self, name: str) -> None:
        self.members.append(SimulatedMember(self.world, name, self.copies, self.log, self.settings))

    def running(self) -> list[SimulatedMember]:
        return [member for member in self.members if member.is_running]

    # ---- steps

    def run(self) -> None:
        """Run with faults, then without until everything is processed; raise AssertionError if a promise is broken."""
        for number in range(STEPS):
            while self.faults and self.faults[0] <= number:
                self.faults.pop(0)
                self.fault()
            self.step()
            if number % 4 == 0 and self.draw.random() < 0.5:
                self._produce()
        self.complete_another()
        self.serve_all()
        for number in range(QUIET_STEPS):
            self.step()
            if number % 50 == 0 and self.is_done():
                break
        assert self.is_done(), self._why_not()
        self._check_end()

    def serve_all(self) -> None:
        """Let every partition have a holder again."""
        self.configure()
        for member in self.running():
            member.source.subscribe(TOPICS)

    def configure(self, **settings: object) -> None:
        self.world.configure(json.dumps({"version": 1, "rebalance_timeout_ms": 1_000, **settings}).encode())

    def complete_another(self) -> None:
        """Run without faults until another checkpoint is complete, which must take a bounded time."""
        order = self.order()
        begun = order.id if order is not None else 0
        for _ in range(QUIET_STEPS):
            order = self.order()
            if not self.running() or (order is not None and (order.complete or 0) > begun):
                break
            self.step()
        else:
            raise AssertionError(f"no checkpoint: {self._why_not()}")

    def step_until(self, is_so: Callable[[], bool]) -> None:
        """Run without faults until something is so."""
        for _ in range(QUIET_STEPS):
            if is_so():
                return
            self.step()
            if self.draw.random() < 0.1:
                self._produce()
        raise AssertionError("not reached")

    def step(self) -> None:
        kind = self.draw.random()
        actors = self.running()
        coordinators = [process for process in self.world.coordinators if process.alive]
        if kind < 0.35 and coordinators:
            for _ in range(self.draw.randint(1, self.moves)):
                if not self.world.move(self.draw.choice(coordinators)):
                    break
        elif kind < 0.80 and actors:
            member = self.draw.choice(actors)
            if member.frozen_until <= self.world.now_us:
                member.step(self.draw)
        elif kind < 0.92 and actors:
            member = self.draw.choice(actors)
            if member.is_joined and member.frozen_until <= self.world.now_us:
                self.act(member)
        else:
            self.world.now_us += self.draw.randint(1_000, 120_000)
            self.world.tick()
        self.world.check()
        self._check_checkpoint()
        self._check_opened()

    def act(self, member: SimulatedMember) -> None:
        """Let the consumer's own threads do something."""
        if self.draw.random() < 0.15:
            member.source.commit()
        elif not member.source.let_arrive():
            member.source.act(within_poll=False)

    def _produce(self) -> None:
        tp = self.draw.choice(sorted(self.log.ends))
        self.log.ends[tp] += self.draw.randint(1, 8)

    # ---- faults

    def fault(self) -> None:  # a table
        kind = self.draw.choices(list(FAULTS), list(FAULTS.values()))[0]
        actors = self.running()
        member = self.draw.choice(actors) if actors else None
        self.seen[kind] += 1
        if kind == "leader":
            self.lose_leader()
        elif kind == "grow":
            number = sum(topic == "t" for topic, _number in self.log.ends)
            self.world.set_topic("t", number + 1)
            self.log.ends["t", number] = 0
        elif kind == "join" or member is None:
            self.join()
        elif kind in {"rebalance", "group-frozen", "group-resumed"}:
            strategy = self.draw.choice(["range", "round_robin", "sticky"])
            self.configure(strategy=strategy, frozen=kind == "group-frozen")
        elif kind == "unsubscribe":
            for one in actors:
                one.source.subscribe(TOPICS[:1])
        elif kind == "hang":  # it keeps its sessions, and is evicted because it does not stop what moves
            member.frozen_until = self.world.now_us + 3_000_000
            member.source.subscribe(TOPICS[:1])
        elif kind == "subscribe":
            member.source.subscribe(TOPICS)
        elif kind in {"reset", "reset-initial"}:
            self.ask(kind)
        else:
            self.hurt(kind, member)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic; what was read of it is in the states for ever."""
        self.world.delete_topic(topic)
        self.log.ends = {tp: end for tp, end in self.log.ends.items() if tp[0] != topic}
        self.deleted.add(topic)

    def ask(self, kind: str) -> None:
        """Ask for a round, as an operator does."""
        content = documents.encode_request(Request(kind, self.names[0], "of the test"))
        self.world.zk.perform(Multi((Create(paths.region(GROUP, "requests", f"{kind}-"), content, sequence=True),)))

    def hurt(self, kind: str, member: SimulatedMember) -> None:
        zk = self.world.zk
        if kind == "kill":
            member.kill()
            if self.draw.random() < 0.7:
                self.add(member.name)
        elif kind == "freeze":
            member.frozen_until = self.world.now_us + self.draw.randint(500_000, 3_000_000)
            if self.draw.random() < 0.5:  # longer than its sessions
                zk.end(member.session)
                zk.end(member.source.agent.session)
                member.source.lose()
        elif kind == "expire-region":
            zk.end(member.session)
        elif kind == "expire-consumer":
            zk.end(member.source.agent.session)
            member.source.lose()
        elif kind == "cut":
            if member.running is not None:
                member.step(self.draw, cut=True)
        elif kind == "leave" and member.is_joined and not member.member.is_leaving and member.running is None:
            member.member.leave()
            member.phase = Phase.WAIT

    def join(self) -> None:
        living = {member.name for member in self.running()}
        free = [name for name in self.names if name not in living]
        if free:
            self.add(self.draw.choice(free))

    def lose_leader(self) -> None:
        living = [process for process in self.world.coordinators if process.alive]
        if len(living) > 1:
            self.world.kill_coordinator(self.draw.choice(living))
        self.world.add_coordinator()

    # ---- promises

    def order(self) -> Order | None:
        node = self.world.zk.nodes.get(paths.region(GROUP, "order"))
        return read_order(node.content) if node is not None else None

    def merge(self, order: Order) -> Merge | None:
        if order.complete is None:
            return None
        names = [paths.region(GROUP, "merged", f"{order.complete}.{piece}") for piece in range(order.pieces)]
        return documents.joined_merge(documents.decode_merge(self.world.zk.nodes[name].content) for name in names)

    def offset(self, tp: TopicPartition) -> int:
        """Return the stored offset, -1 if there is none."""
        node = self.world.zk.nodes.get(paths.offsets(GROUP, *tp))
        return -1 if node is None else int(node.content)

    def holder(self, tp: TopicPartition) -> str | None:
        return next((name for name, held in self.world.owned().items() if tp in held), None)

    def initial(self) -> dict[TopicPartition, int]:
        found = {}
        for topic in TOPICS:
            path = paths.region(GROUP, "initial", topic)
            for number in self.world.zk.children(path):
                found[topic, int(number)] = documents.decode_initial(
                    self.world.zk.nodes[f"{path}/{number}"].content
                ).offset
        return found

    def _check_checkpoint(self) -> None:
        order = self.order()
        if order is None or order.complete is None or order.complete <= self.checked:
            return
        self.checked = order.complete
        merge = self.merge(order)
        assert merge is not None
        self.seen["checkpoints"] += 1
        states = [self.copies[entry] for entry in merge.states.items()]
        self._check_effects(states, merge.offsets, f"checkpoint {order.complete}")

    def _check_opened(self) -> None:
        """No checkpoint is asked for in vain: while an evicted consumer may read on, none can be complete."""
        order = self.order()
        if order is None or order.open is None or order.open.id <= self.opened:
            return
        self.opened = order.open.id
        evicted = self.world.zk.children(paths.evicted(GROUP))
        self.seen["evicted"] += len(evicted)
        assert order.is_resetting or not evicted, f"checkpoint {self.opened} is open while {evicted} may read on"

    def _check_effects(self, states: list[Effects], offsets: dict[TopicPartition, int] | object, where: str) -> None:
        assert isinstance(offsets, dict)
        found: dict[TopicPartition, list[int]] = {}
        for state in states:
            for tp, records in state.items():
                found.setdefault(tp, []).extend(records)
        initial = self.initial()
        for tp in (tp for tp in found.keys() | offsets.keys() if tp[0] not in self.deleted):
            wanted = list(range(initial.get(tp, 0), offsets.get(tp, 0)))
            assert sorted(found.get(tp, [])) == wanted, f"{where}: {tp}: {sorted(found.get(tp, []))}, wanted {wanted}"

    def _states(self) -> list[Effects]:
        order = self.order()
        merge = self.merge(order) if order is not None else None
        living = {member.name: member.application.state for member in self.running()}
        away = [entry for entry in (merge.states.items() if merge is not None else ()) if entry[0] not in living]
        return [*living.values(), *(self.copies[entry] for entry in away)]

    def is_done(self) -> bool:
        positions: dict[TopicPartition, int] = {}
        for member in self.running():
            positions.update(member.source.positions)
        order = self.order()
        flows = order is not None and order.open is None and order.pending is None
        idle = all(member.phase is Phase.FLOW and member.running is None for member in self.running())
        if not self.running():
            return True
        return flows and idle and positions == self.log.ends

    def _why_not(self) -> str:
        members = [(m.name, m.phase, m.member.state, m.member.done, m.source.positions) for m in self.running()]
        regions = [
            p.machine.groups[GROUP].region.reason for p in self.world.coordinators if p.alive and p.machine.groups
        ]
        return f"not at its end: {self.order()}, {members}, ends {self.log.ends}, leader: {regions}"

    def _check_end(self) -> None:
        if self.running():
            self._check_effects(self._states(), dict(self.log.ends), "the end")
        self.seen["records"] = sum(self.log.ends.values())
