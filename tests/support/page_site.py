"""The pages of a coordinator in a world, without a server and without HTTP."""

from __future__ import annotations

from collections.abc import Mapping

from tests.support.world import CoordinatorProcess, World
from zkrebalancer.coordinator.monitor import Monitor
from zkrebalancer.coordinator.pages.asking import Asking
from zkrebalancer.coordinator.pages.foresight import Foresight
from zkrebalancer.coordinator.pages.site import Site
from zkrebalancer.coordinator.service_levels import ServiceLevels
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Call, Connected, Content, Get, Refusal, Refused, Replied, Stat
from zkrebalancer.rebalance.all_shards import AllShards
from zkrebalancer.rebalance.coordinator import Coordinator
from zkrebalancer.runtime.http_limits import Renderer
from zkrebalancer.runtime.notify import Notifier
from zkrebalancer.runtime.vitals import Vitals

LEADERS_SESSION = 17


class Nodes:
    """A ZooKeeper whose nodes are answered at once."""

    def __init__(self, nodes: Mapping[str, bytes | Refusal]) -> None:
        self.nodes = nodes
        self.asking = Asking(self.request)

    def request(self, call_id: int, call: Call) -> None:
        assert isinstance(call, Get)
        content = self.nodes.get(call.path)
        if isinstance(content, bytes):
            session = LEADERS_SESSION if call.path == paths.COORDINATOR else 0
            self.asking.answered(Replied(call_id, Content(content, Stat(0, 0, 0, session, 0))))
        else:
            self.asking.answered(Replied(call_id, Refused(content or Refusal.NO_NODE)))


def shards_of(machine: Coordinator) -> AllShards:
    """Return a process with this coordinator, of the only shard."""
    process = AllShards(machine.identity)
    process.machines = (machine,)
    return process


def monitor_of(process: CoordinatorProcess) -> Monitor:
    """Return the monitor of a coordinator that is connected."""
    monitor = Monitor(shards_of(process.machine), Vitals(6_000, Notifier({})))
    monitor.handling(Connected(1, 6_000))
    return monitor


def site_of(
    world: World,
    process: CoordinatorProcess,
    nodes: Mapping[str, bytes | Refusal] | None = None,
    renderer: Renderer | None = None,
) -> Site:
    monitor = monitor_of(process)
    asked = {path: node.content for path, node in world.zk.nodes.items()} if nodes is None else nodes
    return Site(
        monitor, Nodes(asked).asking, Foresight("z:1", None), renderer or Renderer(), ServiceLevels(monitor).lag_line
    )
