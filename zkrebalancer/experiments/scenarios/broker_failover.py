"""broker-failover: of three brokers, the one that coordinates Kafka's groups dies, and a member joins meanwhile.

For this project it is a broker like any other: what its members notice is that partitions get another leader.
"""

from __future__ import annotations

from collections.abc import Sequence

from zkrebalancer.experiments.scenarios.model import Cast, FailBroker, Join, Scenario, Step

AT_LEAST_S = 10.0  # records that waited for the partitions' new leaders are delivered by then, whoever settles sooner


def _steps(cast: Cast) -> Sequence[Step]:
    (name,) = cast.newcomers(1)
    return [Step("fail-broker", name, (FailBroker(), Join(name)), at_least_s=AT_LEAST_S)]


SCENARIO = Scenario(
    name="broker-failover",
    about="of three brokers, the one that coordinates Kafka's groups is killed, and a member joins",
    steps=_steps,
    servers=3,
)
