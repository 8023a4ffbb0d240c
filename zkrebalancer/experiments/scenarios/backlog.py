"""backlog: many records, some of them there before the members; a member joins, one is killed and returns.

The rate is near what two processors can produce and read, so a pause shows in how long the group needs to catch up.
"""

from __future__ import annotations

from collections.abc import Sequence

from zkrebalancer.experiments.scenarios.model import Cast, Join, Kill, Scenario, Step

BACKLOG = 3_000_000
RECORDS_S = 100_000
RECORD_BYTES = 100
BEFORE_S = 1.0  # less than the quiet time: the first change comes while the group reads the backlog
AT_LEAST_S = 15.0  # the group catches up meanwhile, whoever settles sooner


def _steps(cast: Cast) -> Sequence[Step]:
    (newcomer,), (killed,) = cast.newcomers(1), cast.chosen(1)
    return [
        Step("add-member", newcomer, (Join(newcomer),), at_least_s=AT_LEAST_S),
        Step("kill-member", killed, (Kill(killed),), at_least_s=AT_LEAST_S),
        Step("restart-member", killed, (Join(killed),), at_least_s=AT_LEAST_S),
    ]


SCENARIO = Scenario(
    name="backlog",
    about="100,000 records per second after a backlog of 3 million; a member joins, one is killed and returns",
    steps=_steps,
    before_s=BEFORE_S,
    records_s=RECORDS_S,
    record_bytes=RECORD_BYTES,
    backlog=BACKLOG,
)
