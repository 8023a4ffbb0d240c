"""Compares the ZooKeeper in memory with a real one: the same random calls, answers, versions, watches and errors.

Sessions are compared by owner, transaction ids by order. Simulations depend on `tests/support/zk_model.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import gevent
import pytest
from gevent.event import Event as Flag

from tests.support.deadlines import WITHIN_S
from tests.support.zk_model import Session, ZkModel
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.protocol import calls
from zkrebalancer.protocol.calls import (
    Call,
    Check,
    Content,
    Create,
    Delete,
    Done,
    Get,
    ListChildren,
    Multi,
    Operation,
    Replied,
    Reply,
    SetContent,
    Sync,
    Watched,
    ZooKeeperEvent,
)
from zkrebalancer.runtime.zk import BlockingZk, ZkClient
from zkrebalancer.runtime.zk_reads import MIN_READS

CALLS = 1_500  # of each seed
SEEDS = (1, 2)
SESSIONS = 3
SESSION_MS = 20_000
CALLS_PER_LOOK = 10  # after so many calls, watch events are compared
SESSION_END_PROBABILITY = 0.004
NAMES = ("a", "b", "c")


class Pair:
    """One session on both sides; it begins when the real one is connected."""

    def __init__(self, hosts: str, session: Session, *, reads_together: bool) -> None:
        self.session = session
        self.real_id = 0
        self.answers: dict[int, Reply] = {}
        self.watched: list[Watched] = []
        self._has_news = Flag()
        self.client = ZkClient(hosts, SESSION_MS, self._take, reads_together=reads_together)
        self.client.start()
        self.wait_until(lambda: self.real_id != 0)

    def _take(self, event: ZooKeeperEvent) -> None:
        if isinstance(event, calls.Connected):
            self.real_id = event.session_id
        elif isinstance(event, Replied):
            self.answers[event.call_id] = event.reply
        elif isinstance(event, Watched):
            self.watched.append(event)
        self._has_news.set()

    def wait_until(self, is_true: Callable[[], bool]) -> None:
        """Wait, at most for WITHIN_S."""
        gevent.with_timeout(WITHIN_S, self._wait_until, is_true, timeout_value=None)

    def _wait_until(self, is_true: Callable[[], bool]) -> None:
        while not is_true():
            self._has_news.clear()
            self._has_news.wait()


class Comparison:
    """Performs each call on both sides, and maps the ids of one to those of the other."""

    def __init__(self, hosts: str, seed: int, *, reads_together: bool) -> None:
        self.random = random.Random(seed)
        self.reads_together = reads_together
        self.hosts = hosts
        self.model = ZkModel()
        self.pairs: list[Pair] = []
        self.zxids: dict[int, int] = {}  # model -> real
        self.created_ms: dict[int, int] = {}  # a creation's zxid in the model -> its real time
        self.session_ids = {0: 0}  # model -> real
        self.call_id = 0
        for _ in range(SESSIONS):
            self.open()
        _model, root = self.perform(self.pairs[0], Get("/"))
        assert isinstance(root, Content)
        self.former_children = root.stat.children_created  # of the root, with other seeds

    def open(self) -> None:
        pair = Pair(self.hosts, self.model.open(SESSION_MS), reads_together=self.reads_together)
        self.session_ids[pair.session.session_id] = pair.real_id
        pair.session.inbox.clear()
        self.pairs.append(pair)

    def end(self, pair: Pair) -> None:
        self.pairs.remove(pair)
        pair.client.close()
        self.model.end(pair.session)

    def perform(self, pair: Pair, call: Call) -> tuple[Reply, Reply]:
        """Return the model's answer and the real one."""
        return self.perform_all(pair, [call])[0]

    def perform_all(self, pair: Pair, many: list[Call]) -> list[tuple[Reply, Reply]]:
        """Make calls at the same time; return the model's answers and the real ones."""
        ids = range(self.call_id + 1, self.call_id + 1 + len(many))
        self.call_id = ids[-1]
        for call_id, call in zip(ids, many, strict=True):
            pair.client.request(call_id, call)
        pair.wait_until(lambda: pair.answers.keys() >= set(ids))
        for call_id, call in zip(ids, many, strict=True):
            self.model.send(pair.session, call_id, call)
            self.model.perform_next(pair.session)
        events = [event for event, _position in pair.session.inbox if isinstance(event, Replied)]
        replies = {event.call_id: event.reply for event in events}
        return [(replies[call_id], pair.answers.pop(call_id)) for call_id in ids]

    def translated(self, call: Call, reply: Reply) -> Reply:
        """Return a model's answer to a call with the real server's ids."""
        if not isinstance(reply, Content):
            return reply
        stat = reply.stat
        owner = self.session_ids[stat.ephemeral_owner]
        created, modified = self.zxids.get(stat.created_zxid, 0), self.zxids.get(stat.modified_zxid, 0)
        created_ms = self.created_ms.get(stat.created_zxid, 0)
        is_root = isinstance(call, Get) and call.path == "/"
        children = stat.children_created + (self.former_children if is_root else 0)
        return Content(reply.content, calls.Stat(stat.version, created, modified, owner, created_ms, children))

    def learn(self, model: Reply, real: Reply) -> None:
        """Map two transaction ids; later ones have to agree."""
        if isinstance(model, Content) and isinstance(real, Content):
            self.zxids.setdefault(model.stat.created_zxid, real.stat.created_zxid)
            self.zxids.setdefault(model.stat.modified_zxid, real.stat.modified_zxid)
            self.created_ms.setdefault(model.stat.created_zxid, real.stat.created_ms)

    def watched(self, pair: Pair) -> tuple[list[Watched], list[Watched]]:
        """Return one session's new watch events on both sides."""
        self.perform(pair, Sync("/"))  # everything earlier has arrived when this is answered
        model = [event for event, _position in pair.session.inbox if isinstance(event, Watched)]
        pair.session.inbox.clear()
        pair.wait_until(lambda: len(pair.watched) >= len(model))  # kazoo calls them in a separate greenlet
        real, pair.watched = pair.watched, []
        return sorted(model, key=str), sorted(real, key=str)

    # What is called ---------------------------------------------------------------------------------------------------

    def path(self) -> str:
        return "/" + "/".join(self.random.choice(NAMES) for _ in range(self.random.choice((1, 1, 2, 2, 3))))

    def existing(self) -> str:
        """Draw a path, mostly an existing one that is not an ancestor of all others."""
        known = sorted(path for path in self.model.nodes if path != "/")
        return self.random.choice(known) if known and self.random.random() < 0.8 else self.path()

    def version(self, path: str) -> int:
        node = self.model.nodes.get(path)
        return self.random.choice((-1, node.version, node.version, node.version + 1)) if node is not None else -1

    def operation(self) -> Operation:
        draw, path = self.random.random(), self.existing()
        if draw < 0.45:
            is_sequence = self.random.random() < 0.3
            above = path if is_sequence else ""
            new = f"{above}/n-" if is_sequence else self.path()
            content = self.random.randbytes(self.random.randrange(4))
            return Create(new, content, ephemeral=self.random.random() < 0.3, sequence=is_sequence)
        if draw < 0.65:
            return SetContent(path, self.random.randbytes(3), self.version(path))
        return Delete(path, self.version(path)) if draw < 0.9 else Check(path, self.version(path))

    def call(self) -> Call:
        draw = self.random.random()
        if draw < 0.6:
            return Multi(tuple(self.operation() for _ in range(self.random.choice((1, 1, 2, 3, 4)))))
        if draw < 0.98:
            return self.read()
        return Sync("/")

    def read(self) -> Get | ListChildren:
        kind = Get if self.random.random() < 0.5 else ListChildren
        path = "/" if self.random.random() < 0.1 else self.existing()
        return kind(path, watch=self.random.random() < 0.7)


@pytest.fixture(scope="module")
def hosts(agent_cluster: LocalCluster) -> str:
    """Create a separate chroot."""
    with BlockingZk(agent_cluster.zookeeper) as client:
        assert isinstance(client.perform(Multi((Create("/truth"),))), Done)
    return f"{agent_cluster.zookeeper}/truth"


@pytest.mark.parametrize("reads_together", [False, True], ids=["reads alone", "reads together"])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_model_answers_as_a_real_server_does(hosts: str, seed: int, reads_together: bool) -> None:
    both = Comparison(hosts, seed, reads_together=reads_together)
    try:
        for number in range(CALLS):
            _one_call(both, f"seed {seed}, call {number}")
            if number % CALLS_PER_LOOK == 0:
                for pair in both.pairs:
                    model, real = both.watched(pair)
                    assert model == real, f"seed {seed}, call {number}: watches"
        known = sorted(both.zxids)
        assert [both.zxids[zxid] for zxid in known] == sorted(both.zxids.values()), (
            f"seed {seed}: order of transactions"
        )
    finally:
        _clear(both)


def _one_call(both: Comparison, where: str) -> None:
    pair = both.random.choice(both.pairs)
    if both.random.random() < SESSION_END_PROBABILITY:
        both.end(pair)
        both.open()
        return
    many = [both.call()]
    if both.reads_together and isinstance(many[0], Get | ListChildren):
        many += [both.read() for _ in range(both.random.randrange(2 * MIN_READS))]
    for call, (model, real) in zip(many, both.perform_all(pair, many), strict=True):
        both.learn(model, real)
        assert both.translated(call, model) == real, f"{where}: {call}"


def _clear(both: Comparison) -> None:
    """Remove everything before the next seed."""
    pair = both.pairs[0]
    for other in both.pairs[1:]:
        both.end(other)
    for path in sorted(both.model.nodes.keys() - {"/"}, key=len, reverse=True):
        both.perform(pair, Multi((Delete(path),)))
    both.end(pair)
