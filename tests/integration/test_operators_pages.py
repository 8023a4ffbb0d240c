"""The commands of the pages for operators are run as they are printed, with other names."""

from __future__ import annotations

import json
import shlex
import signal
from collections.abc import Callable

from tests.docs.rules import blocks
from tests.integration.commands import begin, end, run
from tests.integration.scenario import Scenario
from tests.style.sources import ROOT
from zkrebalancer.observe import inspection
from zkrebalancer.observe.inspection import GroupReport
from zkrebalancer.protocol.settings import INCREMENTAL

CAUSE = "5b40994d-39aa-520c-8128-1933a781020c"


class Pages:
    """A group as on the pages, and who runs their commands."""

    def __init__(self, scenario: Scenario) -> None:
        scenario.begin(modes=[INCREMENTAL])
        self.scenario = scenario
        (self.group,), (self.topic,) = scenario.groups, scenario.topics
        member = scenario.report(self.group).members[0]
        assert member.registration is not None
        self.member, self.host = member.consumer, member.registration.host

    def wait_for(self, what: str, is_so: Callable[[int], bool]) -> None:
        """Wait until the number of partitions of the member is so."""

        def check(report: GroupReport) -> bool:
            return is_so(sum(thread.startswith(self.member) for thread in report.owned().values()))

        self.scenario.wait_group(what, self.group, check)

    def run_all(self, page: str, names: dict[str, str]) -> dict[str, str]:
        """Run the commands of a page; return what each has printed, the first time."""
        text = "".join(
            content for language, content in blocks((ROOT / "docs/how-to" / page).read_text()) if not language
        )
        lines = [words for line in text.splitlines() if (words := shlex.split(line, comments=True))]
        told: dict[str, str] = {}
        for words in lines:
            if words[0] != "systemctl":
                shown = self._run(words, names)
                told.setdefault(" ".join(words[1:]), shown)
        return told

    def _run(self, words: list[str], names: dict[str, str]) -> str:
        assert words[0] == "zkrebalancer", words
        own = [{"payments": self.group, "orders": self.topic, **names}.get(word, word) for word in words[1:]]
        if own[0] == "events":
            own[1] = str(self.scenario.lab.events)
        else:
            own += ["--zookeeper", self.scenario.lab.cluster.zookeeper]
            own += ["--yes"] if own[1] == "evict" and "--dry-run" not in own else []  # there is no terminal
        if "--follow" in own:
            process = begin("zkrebalancer", *own)
            assert process.stdout is not None
            assert process.stdout.readline()  # what is there already
            process.send_signal(signal.SIGINT)
            result = end(process)
        else:
            result = run("zkrebalancer", *own)
        assert (result.returncode, "Error" in result.stderr) == (0, False), (words, result.stderr)
        if words[2:] == ["drain", "payments", "worker-3-5f2c"]:
            self.wait_for("the drain", lambda count: not count)
        elif words[2:] == ["undrain", "payments", "worker-3-5f2c"]:
            self.wait_for("the end of the drain", lambda count: count > 0)
        return result.stdout


def test_the_commands_of_a_drain(scenario: Scenario) -> None:
    """They drain and undrain the host, then a member, and evict it."""
    pages = Pages(scenario)
    told = pages.run_all("drain.md", {"b1": pages.host, "worker-3-5f2c": pages.member})
    assert len(told) >= 9
    assert f"{pages.host} is drained in {pages.group}" in told["groups drain --host b1"]
    assert "drained" in told["groups describe payments --members"]
    assert told["groups evict payments worker-3-5f2c"].splitlines()[-1] == f"{pages.member} is evicted"


def test_the_commands_that_say_why_a_group_was_rebalanced(scenario: Scenario) -> None:
    pages = Pages(scenario)
    wanted = ("--group", pages.group, "--kind", "rebalance_finished", "--json")
    shown = run("zkrebalancer", "events", scenario.lab.events, *wanted).stdout
    cause = json.loads(shown)["events"][-1]["cause_id"]
    # It is written after the event, and off the way.
    scenario.lab.wait_for("the history", lambda: bool(inspection.read_history(scenario.lab.zk, pages.group).rebalances))
    told = pages.run_all("why-rebalanced.md", {CAUSE: cause})
    assert len(told) == 9
    assert "rebalance_finished" in told[f"events events --cause {CAUSE}"]
    assert json.loads(told["groups describe payments --history 3 --json"])["history"]
