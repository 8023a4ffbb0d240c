"""Every command that README, docs or the Makefile name exists, and a test in `make test` runs it to its verdict."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.style.documented import Documented, in_documents, in_makefile, in_text
from tests.style.sources import ROOT

BENCHMARKS = "tests/integration/test_benchmarks.py"
SECURED = "tests/integration/test_secured_zookeeper.py"
COMMANDS = "tests/unit/pipeline/test_commands.py"
# Program and sub-command -> the test that runs it briefly, to its end.
RUNS = {
    "zkrebalancer assign": "tests/unit/assignment/test_assign_command.py::test_the_example_of_the_documentation",
    "zkrebalancer backup": "tests/integration/test_deployment.py::test_a_tree_is_kept_and_restored_elsewhere",
    "zkrebalancer cluster down": "tests/integration/test_cluster.py::test_up_status_up_again_and_down_leaves_nothing",
    "zkrebalancer cluster status": "tests/integration/test_cluster.py::test_up_status_up_again_and_down_leaves_nothing",
    "zkrebalancer cluster up": "tests/integration/test_cluster.py::test_up_status_up_again_and_down_leaves_nothing",
    "zkrebalancer coordinator": "tests/integration/test_triggers.py::test_a_consumer_joins",
    "zkrebalancer demo": (
        "tests/integration/test_demo.py::test_the_small_demo_keeps_every_promise_and_leaves_only_the_events"
    ),
    "zkrebalancer events": "tests/unit/cli/test_events.py::test_events_of_several_hosts_are_in_order_and_filtered",
    "zkrebalancer experiment compare": (
        "tests/unit/pipeline/test_compare.py::test_runs_are_compared_and_losses_come_first"
    ),
    "zkrebalancer experiment list": f"{COMMANDS}::test_experiment_list",
    "zkrebalancer experiment run": "tests/integration/test_experiment.py::test_the_same_scenario_with_two_protocols",
    "zkrebalancer group-coordinator": "tests/integration/test_gateway.py::test_clients_share_a_group",
    "zkrebalancer groups configure": (
        "tests/integration/test_group_settings.py::test_settings_are_shown_with_their_plan_and_then_take_effect"
    ),
    **dict.fromkeys(
        [f"zkrebalancer groups {verb}" for verb in ("create", "delete", "freeze", "unfreeze")],
        "tests/integration/test_group_settings.py"
        "::test_a_frozen_group_moves_after_unfreeze_and_an_empty_one_can_be_deleted",
    ),
    **dict.fromkeys(
        ["zkrebalancer groups drain", "zkrebalancer groups undrain"],
        "tests/integration/test_group_settings.py::test_a_drained_member_has_nothing_until_it_is_undrained",
    ),
    "zkrebalancer groups describe": (
        "tests/integration/test_reset_offsets.py::test_offsets_in_both_stores_are_described_with_their_lag_and_reset"
    ),
    "zkrebalancer groups evict": "tests/integration/test_triggers.py::test_an_operator_evicts",
    "zkrebalancer groups explain": "tests/integration/test_group_settings.py::test_why_a_partition_is_where_it_is",
    "zkrebalancer groups list": (
        "tests/integration/test_group_settings.py::test_settings_are_shown_with_their_plan_and_then_take_effect"
    ),
    **dict.fromkeys(
        ["zkrebalancer groups pin", "zkrebalancer groups unpin"],
        "tests/integration/test_group_settings.py::test_why_a_partition_is_where_it_is",
    ),
    "zkrebalancer groups resume": (
        "tests/integration/test_group_settings.py::test_a_freeze_ends_at_its_time_and_a_large_plan_waits_for_a_yes"
    ),
    "zkrebalancer groups plan": (
        "tests/integration/test_group_settings.py::test_settings_are_shown_with_their_plan_and_then_take_effect"
    ),
    "zkrebalancer groups rebalance": "tests/integration/test_triggers.py::test_an_operator_asks",
    "zkrebalancer groups offsets export": (
        "tests/integration/test_move_offsets.py::test_a_group_moves_here_and_back_with_every_record_once"
    ),
    "zkrebalancer groups offsets import": (
        "tests/integration/test_move_offsets.py::test_a_group_moves_here_and_back_with_every_record_once"
    ),
    "zkrebalancer groups offsets restore": (
        "tests/integration/test_restore_offsets.py::test_offsets_of_a_topic_that_was_created_anew_are_put_back"
    ),
    "zkrebalancer groups reset-offsets": (
        "tests/integration/test_reset_offsets.py::test_every_offset_is_replaced_and_the_settings_are_as_before"
    ),
    "zkrebalancer pipeline fleet": (
        "tests/unit/pipeline/test_fleet.py::test_the_page_has_every_question_with_its_figures"
    ),
    "zkrebalancer pipeline run": f"{BENCHMARKS}::test_pipeline",
    "zkrebalancer pipeline sweep": (
        "tests/unit/pipeline/test_sweep.py::test_the_written_table_does_not_depend_on_tasks_or_order"
    ),
    "zkrebalancer pipeline watch": (
        "tests/integration/test_pipeline_interrupts.py::test_an_interrupt_is_one_line_and_leaves_nothing"
    ),
    "zkrebalancer pipeline weights": f"{COMMANDS}::test_pipeline_weights",
    "zkrebalancer restore": "tests/integration/test_deployment.py::test_a_tree_is_kept_and_restored_elsewhere",
    "zkrebalancer security check": f"{SECURED}::test_a_tree_is_secured_while_it_is_used_and_rogues_can_do_nothing",
    "zkrebalancer security identity": "tests/unit/cli/test_security.py::test_the_name_of_a_login",
    "zkrebalancer security init": f"{SECURED}::test_a_tree_is_secured_while_it_is_used_and_rogues_can_do_nothing",
    "zkrebalancer shards set": "tests/integration/test_shards.py::test_coordinators_share_the_groups",
    "zkrebalancer shards show": "tests/integration/test_shards.py::test_coordinators_share_the_groups",
    "zkrebalancer topics create": "tests/integration/test_topic_commands.py::test_a_topic_is_created_and_filled",
    "zkrebalancer topics produce": "tests/integration/test_topic_commands.py::test_a_topic_is_created_and_filled",
    "zkrebalancer topics mirror": "tests/integration/test_cluster.py::test_the_mirror_follows_kafka_4",
    "consumer-agent run": "tests/integration/test_sidecar.py::test_a_stop_lets_the_child_finish_what_it_has",
    "tests.benchmarks.agent": f"{BENCHMARKS}::test_agent",
    "tests.benchmarks.agent.idle": f"{BENCHMARKS}::test_idle_agents",
    "tests.benchmarks.assign": f"{BENCHMARKS}::test_assign",
    "tests.benchmarks.balanced": f"{BENCHMARKS}::test_balanced",
    "tests.benchmarks.election": f"{BENCHMARKS}::test_election",
    "tests.benchmarks.gateway": f"{BENCHMARKS}::test_gateway",
    "tests.benchmarks.gateway_classic": f"{BENCHMARKS}::test_gateway_classic",
    "tests.benchmarks.gateway_joins": f"{BENCHMARKS}::test_gateway_joins",
    "tests.benchmarks.commits": f"{BENCHMARKS}::test_commits",
    "tests.benchmarks.fairness": f"{BENCHMARKS}::test_fairness",
    "tests.benchmarks.fleet": f"{BENCHMARKS}::test_fleet",
    "tests.benchmarks.floor": f"{BENCHMARKS}::test_floor",
    "tests.benchmarks.floor_group": f"{BENCHMARKS}::test_floor_group",
    "tests.benchmarks.floor_join": f"{BENCHMARKS}::test_floor_join",
    "tests.benchmarks.hub": f"{BENCHMARKS}::test_hub",
    "tests.benchmarks.listing": f"{BENCHMARKS}::test_listing",
    "tests.benchmarks.pipeline": f"{BENCHMARKS}::test_pipeline",
    "tests.benchmarks.rebalance": f"{BENCHMARKS}::test_rebalance",
    "tests.benchmarks.region": f"{BENCHMARKS}::test_region",
    "tests.benchmarks.region_crash": f"{BENCHMARKS}::test_region_crash",
    "tests.benchmarks.region_rounds": f"{BENCHMARKS}::test_region_rounds",
    "tests.benchmarks.restarts": f"{BENCHMARKS}::test_restarts",
    "tests.benchmarks.spark_source": f"{BENCHMARKS}::test_spark_source",
    "tests.benchmarks.suspended": f"{BENCHMARKS}::test_suspended",
    "tests.benchmarks.swarm": f"{BENCHMARKS}::test_swarm",
    "deploy/packages.py": "tests/packages/test_packages.py::test_missing_tools_are_named",
    "tests.campaign": "tests/campaign/test_campaign.py::test_a_short_campaign_breaks_no_promise",
    "tests.conformance": "tests/integration/test_conformance.py::test_a_missing_tool_is_named",
    "tests.docs": "tests/docs/test_pages.py::test_a_generated_page_is_current",
    "tests.exactly_once": "tests/exactly_once/test_exactly_once.py::test_a_short_run_finds_only_the_controls",
    "tests.fuzz": "tests/fuzz/test_fuzz.py::test_the_command_line_fuzzes_or_says_what_is_missing",
    "tests.interruptions": "tests/interruptions/test_interruptions.py::test_the_command_line_counts_what_was_tried",
    "tests.model": "tests/model/test_model.py::test_the_protocol_is_safe_and_needs_one_of_its_rules",
    "tests.mutation_score": "tests/mutation_score/test_mutation_score.py::test_a_short_run_and_its_verdict",
    "tests.mutations": "tests/mutations/test_mutations.py::test_the_command_line_says_that_a_bug_was_found",
    "tests.simulation": "tests/simulation/test_simulation.py::test_the_command_line_tells_what_was_done",
}
TOOLS_ONLY = {"setup", "test", "test-long", "lint", "docs", "clean"}  # targets that run no program of this project
DOCUMENTED = in_documents()


def test_what_the_documents_name_exists() -> None:
    assert len(DOCUMENTED) > 50
    assert [f"{command.place}: {flaw}" for command in DOCUMENTED for flaw in command.flaws()] == []


def test_what_the_makefile_runs_exists_and_has_a_short_run() -> None:
    targets = in_makefile()
    assert [flaw for commands in targets.values() for command in commands for flaw in command.flaws()] == []
    assert {target for target, commands in targets.items() if not commands} == TOOLS_ONLY
    assert {command.name() for commands in targets.values() for command in commands} - RUNS.keys() == set()


def test_what_the_documents_name_has_a_short_run() -> None:
    named = {command.name() for command in DOCUMENTED if command.program != "make"}
    groups = {name for name in named if any(run.startswith(f"{name} ") for run in RUNS)}  # named as a whole
    assert named - RUNS.keys() - groups == set()


@pytest.mark.parametrize(("command", "test"), RUNS.items(), ids=RUNS)
def test_the_short_run_is_in_make_test(command: str, test: str) -> None:
    path, _, name = test.partition("::")
    tree = ast.parse((ROOT / path).read_text())
    function = next((node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name), None)
    assert function is not None, f"{command}: {test} does not exist"
    marks = [*function.decorator_list, *_module_marks(tree)]
    assert not any("pytest.mark.long" in ast.unparse(mark) for mark in marks if not _is_parametrize(mark)), test


def _module_marks(tree: ast.Module) -> Iterator[ast.expr]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            yield node.value


def _is_parametrize(mark: ast.expr) -> bool:
    return ast.unparse(mark).startswith("pytest.mark.parametrize")


def flaws(text: str) -> Iterator[str]:
    for command in in_text(text, "page.md"):
        yield from command.flaws()


def test_what_does_not_exist_is_found() -> None:
    assert list(flaws("`make nothing` and `make simulate SEED=1`")) == ["make has no nothing", "make has no SEED"]
    block = "```\n$ zkrebalancer groups frobnicate\n$ zkrebalancer demo --sekonds 1 # comment\n```\n"
    assert list(flaws(block)) == [
        "zkrebalancer groups has no command frobnicate",
        "zkrebalancer demo has no option --sekonds",
    ]
    text = "`python -m tests.nothing` or `.venv/bin/python -m tests.simulation --sid 1`"
    assert list(flaws(text)) == ["there is no module tests.nothing", "tests.simulation has no option --sid"]
    assert list(flaws("we make things, and zkrebalancer too; ``make nothing`` is no code span of one tick")) == []


def test_a_command_has_a_name() -> None:
    assert (
        Documented("", "zkrebalancer", ("groups", "describe", "g", "--offsets")).name()
        == "zkrebalancer groups describe"
    )
    assert Documented("", "make", ("-j2", "simulate", "SEEDS=5")).name() == "make simulate"
