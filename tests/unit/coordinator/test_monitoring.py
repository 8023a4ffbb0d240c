"""Alert rules and dashboard: Prometheus accepts them, they ask for what processes show, and each alert can fire."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from consumer_agent import Consumer
from consumer_agent.sidecar.http_endpoints import families, numbers
from consumer_agent.sidecar.run_counts import RunCounts
from tests.support.promtool import find_promtool
from tests.unit.coordinator.test_monitor import shown_by_a_coordinator, shown_by_a_gateway
from zkrebalancer.rebalance.states import GroupState
from zkrebalancer.topic_mirror import metrics as mirror_metrics

ROOT = Path(__file__).parents[3]
ALERTS = ROOT / "deploy" / "monitoring" / "alerts.yaml"
DASHBOARD = ROOT / "deploy" / "monitoring" / "dashboard.json"
RUNBOOK = ROOT / "docs" / "runbook.md"
PREFIXES = r"(?:zkrebalancer_|consumer_agent_)\w+"

C, A, G, M = "zkrebalancer_coordinator_", "consumer_agent_", "zkrebalancer_gateway_", "zkrebalancer_mirror_"
MIRROR = 'zkrebalancer_mirror_rounds_total{outcome="done"}'
OVERDUE = f"{M}overdue_seconds"
AGENT = '{group="g",client_id="c"}'
GROUP = '{group="g"}'
EVALUATED = "5m"  # each case goes on for 90 minutes, and each evaluation costs
HEALTHY = {
    f"{C}leader": "1x90",
    f"{C}ready": "1x90",
    f'{C}shards{{pod="a"}}': "8x90",
    f'{C}shards{{pod="b"}}': "8x90",
    f'{C}shards_led{{pod="a"}}': "5x90",
    f'{C}shards_led{{pod="b"}}': "3x90",
    f"{C}shards_damaged": "0x90",
    f"{C}restore_unfinished": "0x90",
    f"{C}partitions_unowned": "3x90",  # they just move: in another group at each scrape
    f"{C}partitions_unowned_seconds_max": "0 60 0+0x88",
    f'{C}group_state_age_seconds_max{{state="moving"}}': "2x90",
    f'{C}group_state_age_seconds_max{{state="idle"}}': "0+60x90",
    f'{C}rebalances_total{{cause="member-joined",outcome="finished"}}': "0+3x90",
    f'{C}rebalances_total{{cause="member-joined",outcome="failed"}}': "1x90",
    f'{C}rebalance_pause_seconds_bucket{{le="10"}}': "0+3x90",
    f'{C}rebalance_pause_seconds_bucket{{le="+Inf"}}': "0+3x90",
    f"{C}groups_quarantined": "0x90",
    f"{C}groups_backing_off": "0x90",
    f"{C}refusals": "0x90",
    f'{C}loop_lag_seconds_bucket{{le="0.25"}}': "0+60x90",
    f'{C}loop_lag_seconds_bucket{{le="+Inf"}}': "0+60x90",
    f"{C}slo_lag_seconds_total{GROUP}": "0+60x90",
    f"{C}slo_lag_breached_seconds_total{GROUP}": "0+2x90",
    f"{C}slo_pauses_total{GROUP}": "0+3x90",
    f"{C}slo_pauses_breached_total{GROUP}": "4x90",
    f"{A}lease_seconds{AGENT}": "3x90",
    f"{A}lost_partitions_total{AGENT}": "7x90",
    f"{A}since_poll_seconds{AGENT}": "1x90",
    f"{A}offsets_out_of_range_total{AGENT}": "1x90",
    f"{A}lag_records{AGENT}": "0 100 0+0x88",  # a quiet topic after a burst
    f"{A}polled_records_total{AGENT}": "0 100 100x88",
    f"{A}unmeasured_partitions{AGENT}": "2x5 0x85",  # with the first readings
    f"{A}dead_letters_total{AGENT}": "1x90",
    f"{A}child_restarts_total{AGENT}": "5x90",
    f"{G}ready": "1x90",
    f'{G}errors_total{{part="group"}}': "0x90",
    f"{G}undescribed_topics": "0x90",
    f"{M}undescribed_topics": "0x90",
    f"{M}refusals": "0x90",
    OVERDUE: "0x90",
    MIRROR: "0+6x90",
}
FIRES: dict[str, dict[str, str]] = {  # alert -> what differs from a healthy fleet
    "NoCoordinatorLeads": {f"{C}leader": "0x90"},
    "ShardWithoutLeader": {f'{C}shards_led{{pod="b"}}': "2x90"},
    "ShardsDamaged": {f"{C}shards_damaged": "1x90"},
    "RestoreUnfinished": {f"{C}restore_unfinished": "1x90"},
    "CoordinatorNotReady": {f"{C}ready": "0x90"},
    "PartitionsWithoutOwner": {f"{C}partitions_unowned_seconds_max": "0+60x90"},
    "RebalanceStuck": {f'{C}group_state_age_seconds_max{{state="moving"}}': "0+60x90"},
    "GroupCannotBePlanned": {f"{C}groups_backing_off": "1x90"},
    "RebalancesFail": {f'{C}rebalances_total{{cause="member-joined",outcome="failed"}}': "0+1x90"},
    "LongPauses": {
        f'{C}rebalance_pause_seconds_bucket{{le="10"}}': "0x90",
        f'{C}rebalance_pause_seconds_bucket{{le="30"}}': "0+3x90",
    },
    "GroupQuarantined": {f"{C}groups_quarantined": "1x90"},
    "ZooKeeperRefuses": {f"{C}refusals": "1x90"},
    "CoordinatorLoopSlow": {
        f'{C}loop_lag_seconds_bucket{{le="0.25"}}': "0x90",
        f'{C}loop_lag_seconds_bucket{{le="1"}}': "0+60x90",
    },
    "LagLevelMissed": {f"{C}slo_lag_breached_seconds_total{GROUP}": "0+20x90"},
    "PauseLevelMissed": {f"{C}slo_pauses_breached_total{GROUP}": "0+1x90"},
    "AgentWithoutLease": {f"{A}lease_seconds{AGENT}": "0x90"},
    "PartitionsLost": {f"{A}lost_partitions_total{AGENT}": "0+1x90"},
    "ApplicationStuck": {f"{A}since_poll_seconds{AGENT}": "0+60x90"},
    "OffsetsOutOfRange": {f"{A}offsets_out_of_range_total{AGENT}": "0+1x90"},
    "ConsumptionStopped": {f"{A}lag_records{AGENT}": "50x90"},
    "LagGrows": {f"{A}lag_records{AGENT}": "1+60x90", f"{A}polled_records_total{AGENT}": "0+9x90"},
    "LagUnknown": {f"{A}unmeasured_partitions{AGENT}": "2x90"},
    "DeadLetters": {f"{A}dead_letters_total{AGENT}": "0+1x90"},
    "ChildRestarts": {f"{A}child_restarts_total{AGENT}": "0+1x90"},
    "GatewayNotReady": {f"{G}ready": "0x90"},
    "GatewayErrors": {f'{G}errors_total{{part="group"}}': "0+1x90"},
    "GatewayLayoutUnreadable": {f"{G}layout_readable": "0x90"},
    "TopicMirrorFails": {OVERDUE: "0+60x90"},
    "TopicsNotDescribed": {f"{M}undescribed_topics": "3x90"},
}
OPTIONAL = [f"{G}ready", f'{G}errors_total{{part="group"}}', MIRROR, OVERDUE]  # not every fleet has such processes
ALSO_FIRES = [  # the same alerts, for another reason
    ("TopicsNotDescribed", {f"{G}undescribed_topics": "3x90"}),
    ("ZooKeeperRefuses", {f"{M}refusals": "2x90"}),
    ("TopicMirrorFails", {OVERDUE: " ".join(["0 30"] * 45), MIRROR: "0x90"}),  # systemd starts it every minute
    ("TopicMirrorFails", {OVERDUE: " ".join(["_ _ _ 5"] * 23), MIRROR: " ".join(["_ _ _ 0"] * 23)}),  # or less often
]
ENDED: dict[str, dict[str, str]] = {  # alert -> which processes were there, and show nothing any more
    "NoCoordinatorLeads": {f"{C}leader": "1x30 stale"},
    "GatewayNotReady": {f"{G}ready": "1x30 stale"},
    "TopicMirrorFails": {MIRROR: "0+6x30 stale"},
}


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def queries() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"].replace("$__rate_interval", "5m") for panel in panels for target in panel["targets"]]


def shown() -> Iterator[str]:
    """Yield the names of everything that our processes export."""
    for metric in (one for shown_by_a_program in PAGES.values() for one in shown_by_a_program()):
        yield metric.name + "_total" * (metric.type == "counter")
        if metric.type == "histogram":
            yield f"{metric.name}_bucket"


def shown_by_an_agent() -> Iterator[Metric]:
    own = numbers(Consumer(zookeeper="z:1", bootstrap="b:1", group="g"), RunCounts(has_child=True))
    yield from families(own, {"group": "g", "client_id": "c"})


PAGES: dict[str, Callable[[], Iterable[Metric]]] = {
    "coordinator": shown_by_a_coordinator,
    "gateway": shown_by_a_gateway,
    "mirror": lambda: mirror_metrics.registry(mirror_metrics.Seen()).collect(),
    "agent": shown_by_an_agent,
}


class Fixed(Collector):
    """A metric that was collected before."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


def test_they_ask_for_metrics_that_exist() -> None:
    """Rename a metric in an expression."""
    asked = {name for text in [*queries(), *(rule["expr"] for rule in rules())] for name in re.findall(PREFIXES, text)}
    assert asked - set(shown()) == set()
    assert asked


def test_they_name_states_that_exist() -> None:
    texts = [*queries(), *(rule["expr"] for rule in rules())]
    matchers = [matcher for text in texts for matcher in re.findall(r'state[=!]~"([^"]+)"', text)]
    named = {state for matcher in matchers for state in matcher.split("|")}
    assert named <= {state.value for state in GroupState}
    assert named


def test_each_alert_has_a_section_in_the_runbook_and_no_other_section_names_one() -> None:
    titles = re.findall(r"^### (\w+)$", RUNBOOK.read_text(), re.MULTILINE)
    alerts = [rule["alert"] for rule in rules()]
    assert titles == alerts
    assert [rule["annotations"]["runbook"] for rule in rules()] == [f"runbook.md#{name.lower()}" for name in alerts]
    assert list(FIRES) == alerts


@pytest.fixture(scope="module")
def promtool() -> str:
    found = find_promtool()
    if found is None:
        pytest.skip("promtool is not installed, and Debian's cannot be downloaded")
    return found


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("program", ["coordinator", "gateway", "mirror", "agent"])
def test_pages_keep_prometheus_conventions(program: str, promtool: str) -> None:
    """Leave out a help text, or measure milliseconds."""
    registry = CollectorRegistry()
    for metric in PAGES[program]():
        registry.register(Fixed(metric))
    page = generate_latest(registry).decode()
    done = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_prometheus_accepts_every_rule_and_every_query(promtool: str, tmp_path: Path) -> None:
    recorded = [{"record": f"q{number}", "expr": query} for number, query in enumerate(queries())]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": recorded}]}))
    run(promtool, "check", "rules", str(ALERTS), str(file))


def test_each_alert_fires_and_none_in_a_healthy_fleet(promtool: str, tmp_path: Path) -> None:
    """Turn any comparison round, or make a threshold 1,000 times as high. Or leave out what asks for those that ended.

    Or let an alert fire where there never was a process of its kind, or where each round of a mirror is `refused`.
    """
    differences = [(None, {}), (None, dict.fromkeys(OPTIONAL, "_x90")), (None, {MIRROR: "9x90"}), *FIRES.items()]
    differences += [*ALSO_FIRES, *ENDED.items()]
    cases = [case(alert, differing) for alert, differing in differences]
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": EVALUATED, "tests": cases}))
    run(promtool, "test", "rules", str(file))


def case(alert: str | None, differing: dict[str, str]) -> dict[str, object]:
    """Return a test of promtool: after 90 minutes this alert fires, None: no alert at all."""
    series = [{"series": name, "values": values} for name, values in {**HEALTHY, **differing}.items()]
    firing = f'count(ALERTS{{alertstate="firing"{"" if alert is None else f",alertname={json.dumps(alert)}"}}})'
    expected = [] if alert is None else [{"labels": "{}", "value": 1}]
    asked = {"expr": firing, "eval_time": "90m", "exp_samples": expected}
    return {"name": alert or "healthy", "interval": "1m", "input_series": series, "promql_expr_test": [asked]}
