"""Which ends of a process a campaign excuses."""

from __future__ import annotations

import pytest

from tests.campaign.company import is_excused
from zkrebalancer.runtime.zk import CONNECT_TIMEOUT_S


@pytest.mark.parametrize(
    ("started_s", "excused"),
    [
        (100 - CONNECT_TIMEOUT_S - 1, False),  # it had registered by then
        (99, True),
        (104, True),
        (106, False),  # its first call came later
    ],
)
def test_a_process_may_end_only_while_it_cannot_register(started_s: float, excused: bool) -> None:
    assert is_excused(started_s, [(20, 21), (100, 105)]) is excused


def test_without_a_fault_no_process_may_end() -> None:
    assert not is_excused(0.0, [])
