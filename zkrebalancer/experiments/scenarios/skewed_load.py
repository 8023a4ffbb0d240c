"""skewed-load: some partitions get many times the records of others, records are work, and a member joins.

Members could do all of it in a group of any size: the hottest partition alone would keep one of them busy for four
fifths of its time. Who has equally many of the others beside it has more than it can do.
"""

from __future__ import annotations

from zkrebalancer.experiments.scenarios.model import Join, Scenario, Step

HOTTEST = 1.15
BUSY_SHARE = 0.7
CATCH_UP_S = 25.0  # what came while the members joined is read by then, by those who keep up
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
