"""A member needs the right to its region's nodes, and none at those above all groups."""

from __future__ import annotations

import pytest

from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Refusal, Refused
from zkrebalancer.protocol.errors import ZooKeeperRefusedError
from zkrebalancer.region.permitted import require_permitted

ABOVE, OWN = (paths.CONSUMERS, paths.GROUPS), (paths.group("g"), paths.region("g"), paths.region("g", "members"))
REFUSED = [(path, Refusal.NO_NODE) for path in (*ABOVE, *OWN)] + [(path, Refusal.NO_AUTH) for path in OWN]


@pytest.mark.parametrize(("path", "refusal"), REFUSED)
def test_what_a_member_may_not_make_or_use_is_named(path: str, refusal: Refusal) -> None:
    with pytest.raises(
        ZooKeeperRefusedError, match=rf"^{path} is missing, .* `zkrebalancer security init --group g=…`"
    ):
        require_permitted("g", path, Refused(refusal))


@pytest.mark.parametrize("path", ABOVE)
def test_a_member_need_not_read_what_is_above_all_groups(path: str) -> None:
    """In `require_permitted`, require it: where `/consumers` is closed, no member could join any region."""
    require_permitted("g", path, Refused(Refusal.NO_AUTH))
