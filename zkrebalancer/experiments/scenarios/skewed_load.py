"""skewed-load: some partitions get many times the records of others, records are work, and a member joins.

The members could do all of it if each got its part: with SKEW, the hottest partition is what one member can just do in
a group of 20 with 240 partitions, and in most groups that deal partitions by number somebody has more than he can do.
"""

from __future__ import annotations

from zkrebalancer.experiments.scenarios.model import Join, Scenario, Step

SKEW = 0.7
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
    skew=SKEW,
    busy_share=BUSY_SHARE,
    before_s=CATCH_UP_S,
)
