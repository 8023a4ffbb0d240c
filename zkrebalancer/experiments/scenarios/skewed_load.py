"""skewed-load: some partitions get many times the records of others, work takes time, and a member joins."""

from __future__ import annotations

from zkrebalancer.experiments.scenarios.model import Join, Scenario, Step

REST_S = 10.0

SCENARIO = Scenario(
    name="skewed-load",
    about="few partitions get most of the records, each takes 8 ms of work, and a member joins",
    steps=lambda cast: [
        Step("rest", at_least_s=REST_S),
        *(Step("add-member", name, (Join(name),), at_least_s=REST_S) for name in cast.newcomers(1)),
    ],
    skew=1.0,
    record_work_us=8_000,
)
