"""The code keeps the rules on size, sleeps, handlers and texts; each rule finds an offender."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.style import code_rules
from tests.style.code_rules import MAX_FILE_LINES, MAX_FUNCTION_LINES
from tests.style.sources import PRODUCT, Source, python_sources, text_files

Rule = Callable[[Source], list[str]]
TextRule = Callable[[str, str], list[str]]
WALL_CLOCK = {  # file -> what it is for
    "consumer_agent/kafka/tokens.py": "the end of a token, which its issuer dates",
    "consumer_agent/runtime/frontend.py": "shown: when a member registered",
    "consumer_agent/sidecar/dead_letters.py": "shown: when a record failed",
    "zkrebalancer/cli/backup.py": "shown: when a backup was taken",
    "zkrebalancer/cli/groups/freezing.py": "the end of a freeze, which has to outlive its leader",
    "zkrebalancer/cli/groups/lags.py": "the age of records, which their producers date",
    "zkrebalancer/cli/watching.py": "shown: the present time",
    "zkrebalancer/cli/pipeline/weights.py": "the hour of the week",
    "zkrebalancer/coordinator/lag_process.py": "the age of records",
    "zkrebalancer/coordinator/pages/live.py": "shown: the present time",
    "zkrebalancer/coordinator/pages/site.py": "shown: times of events",
    "zkrebalancer/coordinator/service.py": "shown; ends of a freeze and a static grace under the next leader",
    "zkrebalancer/coordinator/traces.py": "shown: when a rebalance began",
    "zkrebalancer/experiments/bulk_producer.py": "experiments",
    "zkrebalancer/experiments/members/recorder.py": "experiments",
    "zkrebalancer/experiments/producer.py": "experiments",
    "zkrebalancer/experiments/run.py": "experiments",
    "zkrebalancer/gateway/member_agent.py": "shown: when a member registered",
    "zkrebalancer/observe/events.py": "the second time of an event; the first never jumps",
    "zkrebalancer/operations/audit.py": "shown: when a group was changed",
    "zkrebalancer/operations/loads.py": "the hour of the week",
    "zkrebalancer/pipeline/topic.py": "where the time of reading begins",
    "zkrebalancer/runtime/clock.py": "reads it",
    "zkrebalancer/topic_mirror/mirror.py": "shown: when a broker was registered",
}
MAY_PRINT = ("zkrebalancer/cli/", "consumer_agent/sidecar/cli.py")


@pytest.mark.parametrize("rule", [code_rules.size_breaches, code_rules.blind_sleeps, code_rules.broad_excepts])
def test_the_code_keeps_each_rule(rule: Rule) -> None:
    assert [problem for source in python_sources(*PRODUCT, "tests") for problem in rule(source)] == []


def test_only_the_command_line_prints() -> None:
    sources = [source for source in python_sources(*PRODUCT) if not source.path.startswith(MAY_PRINT)]
    assert [problem for source in sources for problem in code_rules.prints(source)] == []


def test_all_commands_ask_questions_in_one_way() -> None:
    """Others let no greenlet run: after ten seconds, the ZooKeeper session of the command is over."""
    others = ("click.confirm(", "click.prompt(", "prompt=", " input(")
    found = [(source.path, other) for source in python_sources(*PRODUCT) for other in others if other in source.text]
    assert found == []


def test_each_use_of_the_wall_clock_was_looked_at() -> None:
    """A new one: what if the clock jumps by a day? Then add it here, and what remains to docs/reliability.md."""
    sources = python_sources(*PRODUCT)
    found = {problem.split(":")[0] for source in sources for problem in code_rules.wall_clocks(source)}
    assert sorted(found) == sorted(WALL_CLOCK)


def test_no_log_handler_ends_a_thread_of_the_agent_or_a_connection() -> None:
    packages = ("consumer_agent", "zkrebalancer/runtime", "zkrebalancer/observe")
    sources = [source for source in python_sources(*PRODUCT) if source.path.startswith(packages)]
    found = [problem for source in sources for problem in code_rules.raw_loggers(source)]
    assert [problem for problem in found if not problem.startswith("zkrebalancer/runtime/logs.py:")] == []


@pytest.mark.parametrize("rule", [code_rules.unfinished, code_rules.machine_paths])
def test_the_texts_keep_each_rule(rule: TextRule) -> None:
    assert [problem for path, text in text_files() for problem in rule(path, text)] == []


LONG_FUNCTION = "def f():\n" + "    g()\n" * MAX_FUNCTION_LINES
LONG_FILE = "g()\n" * (MAX_FILE_LINES + 1)
SWALLOWED = "try:\n    f()\nexcept {}:\n    g()\n"


@pytest.mark.parametrize(
    ("rule", "text", "complaint"),
    [
        (code_rules.size_breaches, LONG_FUNCTION, "a.py:1: f has 61 lines, at most 60"),
        (code_rules.size_breaches, LONG_FILE, "a.py: 451 lines, at most 450"),
        (code_rules.blind_sleeps, "import time\ntime.sleep(1)", "a.py:2: time.sleep without a polling loop"),
        (code_rules.blind_sleeps, "sleep(1)", "a.py:1: time.sleep without a polling loop"),
        (code_rules.blind_sleeps, "for _ in x:\n    time.sleep(1)", "a.py:2: time.sleep without a polling loop"),
        (code_rules.broad_excepts, "try:\n    f()\nexcept:\n    g()", "a.py:3: catches everything"),
        (code_rules.broad_excepts, SWALLOWED.format("Exception"), "a.py:3: catches everything"),
        (code_rules.broad_excepts, "try:\n    f()\nexcept Exception as e:\n    g(e)", "a.py:3: catches everything"),
        (code_rules.broad_excepts, SWALLOWED.format("(ValueError, BaseException) as e"), "a.py:3: catches everything"),
        (code_rules.prints, "print(1)", "a.py:1: print outside the command line"),
        (code_rules.raw_loggers, "getLogger('a')", "a.py:1: a logger that is not of zkrebalancer.runtime.logs"),
    ],
)
def test_an_offender_is_found(rule: Rule, text: str, complaint: str) -> None:
    assert rule(Source("a.py", text)) == [complaint]


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (code_rules.size_breaches, "def f():\n" + "    g()\n" * (MAX_FUNCTION_LINES - 1)),
        (code_rules.blind_sleeps, "while not is_done():\n    time.sleep(1)"),
        (code_rules.broad_excepts, SWALLOWED.format("ValueError")),
        (code_rules.prints, "console.print(1)"),
        (code_rules.raw_loggers, "logging.getLogger().setLevel(1)"),
        (code_rules.broad_excepts, "try:\n    f()\nexcept BaseException:\n    g()\n    raise"),
        (code_rules.broad_excepts, "try:\n    f()\nexcept BaseException as e:\n    step = generator.throw(e)"),
    ],
)
def test_allowed_code_passes(rule: Rule, text: str) -> None:
    assert rule(Source("a.py", text)) == []


@pytest.mark.parametrize("mark", ["TO" + "DO", "FIX" + "ME", "X" * 3, "raise NotImplemented" + "Error"])
def test_unfinished_work_is_found(mark: str) -> None:
    (problem,) = code_rules.unfinished("a.md", f"fine\n# {mark}: later")
    assert problem.startswith("a.md:2: unfinished: ")


@pytest.mark.parametrize("text", ['"{}home/me/x"', "see {}tmp/x", "cd {}root/x", "https:/{}pypi.org/simple"])
def test_machine_specific_paths_are_found(text: str) -> None:
    (problem,) = code_rules.machine_paths("a.md", text.format("/"))
    assert problem.startswith("a.md:1: a")


@pytest.mark.parametrize("text", ["/brokers/topics", "docs/home/x", "~/work/x", "$HOME/tmp/x", "/consumers/root"])
def test_other_paths_pass(text: str) -> None:
    assert code_rules.machine_paths("a.md", text) == []
