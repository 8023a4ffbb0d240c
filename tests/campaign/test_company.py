"""When a campaign excuses a process that ends by itself."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from tests.campaign.company import BrokenPromiseError, Company, is_excused
from tests.campaign.watching import Watcher
from zkrebalancer.runtime.zk import CONNECT_TIMEOUT_S

if TYPE_CHECKING:
    from pathlib import Path

    from tests.campaign.links import ProxiedLab


@pytest.mark.parametrize(
    ("started_s", "excused"),
    [
        (100 - CONNECT_TIMEOUT_S - 1, False),  # it must have registered before
        (99, True),
        (104, True),
        (106, False),  # it started afterwards
    ],
)
def test_a_process_may_end_only_while_it_cannot_register(started_s: float, excused: bool) -> None:
    assert is_excused(started_s, [(20, 21), (100, 105)]) is excused


def test_without_a_fault_no_process_may_end() -> None:
    assert not is_excused(0.0, [])


@pytest.mark.parametrize("excuse", [True, False])
def test_an_agent_that_ended_before_it_is_stopped_needs_an_excuse(excuse: bool, tmp_path: Path) -> None:
    agent = "named-eager-1"
    log = tmp_path / f"{agent}.log"
    log.write_text("agent starts\nError: no such topic\n")
    program = SimpleNamespace(is_running=False, pid=0, log=log)
    lab = SimpleNamespace(programs={agent: program}, wait_for=lambda _what, is_so: is_so(), stop=lambda *_names: None)
    company = Company(cast("ProxiedLab", lab), Watcher(tmp_path), max_agents=1)
    company._started_s[agent] = 0.0
    company.no_start_s = [(0.0, 1.0)] if excuse else []
    with nullcontext() if excuse else pytest.raises(BrokenPromiseError, match=f"{agent}.log: Error: no such topic$"):
        company.stop(agent)
    assert (agent in company.missing) is excuse
