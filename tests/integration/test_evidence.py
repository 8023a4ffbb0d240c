"""What the report of a failed test shows."""

from __future__ import annotations

from tests.integration import evidence
from tests.integration.scenario import Scenario
from zkrebalancer.protocol.settings import INCREMENTAL

LONG_SESSION_MS = 8_000  # the suspended consumer's; its partitions are free when it is over


def test_it_names_the_consumer_that_is_waited_for(scenario: Scenario) -> None:
    """It also has the logs and events that led there."""
    scenario.lab.session_timeout_ms = LONG_SESSION_MS
    scenario.begin(modes=[INCREMENTAL], members=1)
    (group,) = scenario.groups
    (frozen,) = scenario.groups[group]
    scenario.lab.wait_for("its first line", lambda: f"joined group {group}" in scenario.log_lines(frozen))
    scenario.lab.freeze(frozen)
    scenario.join(group)
    scenario.wait_event("command_sent", group=group, option="stop-fetcher")
    sections = dict(evidence.gather([scenario]))
    scenario.lab.thaw(frozen)
    assert f"group {group}: moving" in sections["groups"]
    assert f"waiting for {frozen}" in sections["groups"]
    assert f"leader: {scenario.coordinators[0].removeprefix('coordinator-')}" in sections["groups"]
    assert f"fault name=freeze target={frozen}" in sections["last events"]
    assert f"== {frozen}\njoined group {group}" in sections["ends of logs"]
    scenario.verify()


def test_long_logs_and_events_are_cut_where_they_are_old(scenario: Scenario) -> None:
    log = scenario.lab.events / "long.log"
    log.write_text("\n".join(f"line {number} " + "x" * 1_000 for number in range(10_000)))
    for number in range(1_000):
        scenario.lab.note("step", number=number, name=f"{number}", target="x" * 1_000)
    scenario.lab.note("step", number=1_000, name="last", target="")
    scenario.wait_event("step", name="last")
    for text, last in (
        (evidence.ends({"long": log}), "line 9999 "),
        (evidence.last_events(scenario.lab.events), "name=last"),
    ):
        assert last in text.splitlines()[-1]
        assert len(text) < evidence.MAX_CHARACTERS
