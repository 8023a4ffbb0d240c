"""skewed-load: a few partitions get many times the records of others, records take work, and a member joins.

A group of any size could do the work: its hottest partition alone keeps one member busy for four fifths of its time.
But a member that owns the hottest partition and an equal number of the others is overloaded.
"""

from __future__ import annotations

from zkrebalancer.experiments.scenarios.model import Join, Scenario, Step

HOTTEST = 1.15
BUSY_SHARE = 0.7
CATCH_UP_S = 25.0  # members that keep up have read the backlog of the start by then
REST_S = 30.0

SCENARIO = Scenario(
    name="skewed-load",
    about="few partitions get most of the records, members are busy with them 70 % of their time, and a member joins",
    steps=lambda cast: [
        Step("rest", at_least_s=REST_S),
        *(Step("add-member", name, (Join(name),), at_least_s=REST_S) for name in cast.newcomers(1)),
    ],
    hottest=HOTTEST,
    busy_share=BUSY_SHARE,
    before_s=CATCH_UP_S,
)
