"""zookeeper-failover: of three ZooKeeper servers the leader dies, later two of three; a member joins each time.

Without a quorum, nothing of this project changes hands. Protocols of a broker in KRaft mode don't notice.
"""

from __future__ import annotations

from collections.abc import Sequence

from zkrebalancer.experiments.scenarios.model import Cast, FailZookeeper, Join, Pause, RestartZookeeper, Scenario, Step

AWAY_S = 10.0  # longer than the tuned sessions of 6 s


def _steps(cast: Cast) -> Sequence[Step]:
    first, second = cast.newcomers(2)
    return [
        Step("fail-leader", first, (FailZookeeper(1), Join(first))),
        Step("restart-server", actions=(RestartZookeeper(),)),
        Step("lose-quorum", second, (FailZookeeper(2), Join(second), Pause(AWAY_S), RestartZookeeper())),
    ]


SCENARIO = Scenario(
    name="zookeeper-failover",
    about="of three ZooKeeper servers the leader dies, then two of three for 10 s; a member joins each time",
    steps=_steps,
    servers=3,
)
