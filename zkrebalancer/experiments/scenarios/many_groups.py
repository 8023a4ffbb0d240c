"""many-groups: many small groups on the same servers; all get a member at once, then one while the others rest."""

from __future__ import annotations

from collections.abc import Sequence

from zkrebalancer.experiments.scenarios.model import Cast, Join, Scenario, Step

GROUP_MEMBERS = 3


def _steps(cast: Cast) -> Sequence[Step]:
    firsts = [cast.newcomers(1, group)[0] for group in cast.group_names]
    (alone,) = cast.newcomers(2, cast.group_names[0])[1:]
    return [
        Step("add-members", f"{len(firsts)} members", tuple(Join(name) for name in firsts)),
        Step("add-member", alone, (Join(alone),)),
    ]


SCENARIO = Scenario(
    name="many-groups",
    about="groups of three members: each gets a member, all at the same time; later one group gets another",
    steps=_steps,
    group_members=GROUP_MEMBERS,
)
