"""zookeeper-failover: of three ZooKeeper servers the leader dies, later two of three; a member joins each time.

Without a quorum, nothing of this project changes hands. Protocols of a broker in KRaft mode don't notice. The second
newcomer comes near the end of the time without a quorum: an agent that starts gives up after 10 s without ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Sequence

from zkrebalancer.experiments.scenarios.model import Cast, FailZookeeper, Join, Pause, RestartZookeeper, Scenario, Step

BEFORE_JOIN_S, AFTER_JOIN_S = 6.0, 2.0  # together longer than the tuned sessions of 6 s


def _steps(cast: Cast) -> Sequence[Step]:
    first, second = cast.newcomers(2)
    back = Pause(AFTER_JOIN_S), RestartZookeeper()
    return [
        Step("fail-leader", first, (FailZookeeper(1), Join(first))),
        Step("restart-server", actions=(RestartZookeeper(),)),
        Step("lose-quorum", second, (FailZookeeper(2), Pause(BEFORE_JOIN_S), Join(second), *back)),
    ]


SCENARIO = Scenario(
    name="zookeeper-failover",
    about="of three ZooKeeper servers the leader dies, then two of three for 8 s; a member joins each time",
    steps=_steps,
    servers=3,
)
