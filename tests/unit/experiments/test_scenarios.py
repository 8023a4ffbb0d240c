"""Scenarios as data: valid steps, chosen targets, and the placement of members in processes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest

from consumer_agent.config import ConsumerConfig
from consumer_agent.kafka.client import kafka_settings
from zkrebalancer.cli.group_coordinator import group_coordinator
from zkrebalancer.experiments.lab import GATEWAY_PORTS
from zkrebalancer.experiments.placement import place
from zkrebalancer.experiments.play import known_load
from zkrebalancer.experiments.producer import turns
from zkrebalancer.experiments.protocols import (
    CLIENT,
    HEARTBEATS_MS,
    HELIX_SESSION,
    JAVA_CLIENT,
    PROTOCOLS,
    SWEPT,
    TUNINGS,
)
from zkrebalancer.experiments.scenarios import SCENARIOS
from zkrebalancer.experiments.scenarios.model import (
    GROUP,
    TOPIC,
    Cast,
    Freeze,
    Join,
    Kill,
    Leave,
    Step,
    Thaw,
    group_of,
    needed,
)
from zkrebalancer.runtime.kafka import fault

CAST = Cast(members=4, partitions=24, seed=3)


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_steps_of_a_scenario_are_valid(name: str) -> None:
    steps = SCENARIOS[name].steps(CAST)
    assert steps
    assert steps == SCENARIOS[name].steps(CAST), "the seed decides everything"
    present, frozen = set(CAST.present), set[str]()
    for action in (action for step in steps for action in step.actions):
        match action:
            case Join(member):
                assert member not in present
                present.add(member)
            case Leave(member) | Kill(member):
                present.remove(member)
            case Freeze(member):
                present.remove(member)
                frozen.add(member)
            case Thaw(member):
                frozen.remove(member)
                present.add(member)
        assert present, "a member is always left"
    assert not frozen, "a suspended member cannot leave at the end"


def test_a_gateway_has_a_port_for_each_broker() -> None:
    """In `GATEWAY_PORTS`, provide for one broker: a gateway that restarts finds the port of the second one taken."""
    most = max(scenario.servers for scenario in SCENARIOS.values())
    assert most + 2 == GATEWAY_PORTS, "its own, and one for HTTP"


def test_a_join_with_three_servers_of_each_kind_is_otherwise_the_same() -> None:
    one, three = SCENARIOS["scale-out"], SCENARIOS["scale-out-three"]
    assert three.steps(CAST) == one.steps(CAST)
    assert replace(one, name=three.name, about=three.about, servers=3) == three


def test_a_join_with_a_slow_disk_is_otherwise_the_same() -> None:
    quick, slow = SCENARIOS["scale-out"], SCENARIOS["slow-disk-5ms"]
    assert slow.steps(CAST) == quick.steps(CAST)
    assert replace(quick, name=slow.name, about=slow.about, sync_ms=5.0) == slow


def test_groups_share_members_and_partitions_equally() -> None:
    cast = SCENARIOS["many-groups"].cast(60, 240, 1)
    assert (cast.groups, cast.topic_partitions, len(cast.present)) == (20, 12, 60)
    assert cast.present[:4] == ("g01.m01", "g01.m02", "g01.m03", "g02.m01")
    assert {group_of(member) for member in cast.present} == set(cast.group_names)
    together, alone = SCENARIOS["many-groups"].steps(cast)
    joining = [action.member for action in together.actions if isinstance(action, Join)]
    assert [group_of(member) for member in joining] == [*cast.group_names]
    assert alone.actions == (Join("g01.m05"),)
    assert SCENARIOS["many-groups"].cast(2, 2, 1).present == ("g01.m01", "g02.m01")
    assert SCENARIOS["crash"].cast(60, 240, 1) == Cast(60, 240, 1)
    assert Cast(4, 4, 1).group_names == (GROUP,) == (group_of("m01"),)
    assert group_of("m01", "else") == "else"


def test_an_upgrade_replaces_each_member_as_often_as_its_protocol_needs() -> None:
    every = SCENARIOS["upgrade"].steps(CAST)
    assert {name: protocol.restarts for name, protocol in PROTOCOLS.items() if protocol.restarts} == {
        **dict.fromkeys(["central-incremental", "central-eager", "kip848", "java-848", "gateway-848"], 1),
        "gateway-central": 1,
        "java-cooperative": 2,
    }
    for protocol in PROTOCOLS.values():
        steps = needed(every, protocol.restarts)
        assert [step.target for step in steps] == [*CAST.present] * protocol.restarts
        for tuning in protocol.settings:
            versions = protocol.versions(tuning)
            assert len(versions) == protocol.restarts + 1
            assert versions[-1] == protocol.settings[tuning].member
            if protocol.restarts and not protocol.earlier_mode:
                assert versions[0] != versions[-1]
    assert needed(SCENARIOS["crash"].steps(CAST), 0) == SCENARIOS["crash"].steps(CAST)


def test_the_mode_before_an_upgrade_is_another_one() -> None:
    for name in ("central-incremental", "central-eager"):
        before, after = (PROTOCOLS[name].group("tuned", is_skewed=False, is_before=early) for early in (True, False))
        assert before is not None
        assert after is not None
        assert {before.mode, after.mode} == {"incremental", "eager"}


def test_the_seed_chooses_the_targets() -> None:
    targets = {Cast(20, 240, seed).chosen(3) for seed in range(10)}
    assert len(targets) > 5
    assert all(len(set(names)) == 3 for names in targets)
    assert Cast(2, 2, 1).chosen(3) in {("m01",), ("m02",)}


def test_two_members_are_enough_for_every_scenario() -> None:
    for scenario in SCENARIOS.values():
        assert scenario.steps(Cast(2, 2, 1))


@pytest.mark.parametrize(("members", "partitions"), [(2, 6), (6, 48), (20, 240)])
def test_a_skewed_load_keeps_members_equally_busy_in_groups_of_any_size(members: int, partitions: int) -> None:
    scenario, cast, records_s = SCENARIOS["skewed-load"], Cast(members, partitions, 1), 2.0 * partitions
    assert scenario.rate(cast) == 2.0
    work_us = scenario.record_work_us(cast)
    assert records_s * work_us / members == pytest.approx(700_000, rel=1e-3)
    hottest = 1 / sum(rank ** -scenario.skew(cast) for rank in range(1, partitions + 1))
    assert hottest * records_s * work_us == pytest.approx(1.15 * 700_000, rel=0.01)
    assert SCENARIOS["steady"].skew(cast) == SCENARIOS["steady"].record_work_us(cast) == 0
    assert SCENARIOS["steady"].rate(Cast(100, 1_000, 1)) == 1.0, "a thousand records per second, not more"
    assert SCENARIOS["backlog"].rate(Cast(4, 100, 1)) == 1_000.0


def test_known_weights_equal_the_producers_rates() -> None:
    scenario, cast = SCENARIOS["skewed-load-weights"], Cast(4, 12, 3)
    rates = [rate for [rate] in known_load(scenario, cast).rates[TOPIC]]
    assert sum(rates) == pytest.approx(2.0 * cast.partitions)
    sent = islice(turns([(TOPIC, number) for number in range(12)], scenario.skew(cast), cast.seed), 20_000)
    counts = Counter(number for _topic, number in sent)
    assert [counts[number] / 20_000 for number in range(12)] == pytest.approx([r / sum(rates) for r in rates], abs=0.01)


@pytest.mark.parametrize("action", [Kill("m02"), Freeze("m02")])
def test_a_member_to_be_killed_or_suspended_has_its_own_process(action: Kill | Freeze) -> None:
    """In `place`, let it share one: others would be suspended with it, and the figure be that of several members."""
    cast = Cast(5, 10, 1)
    steps = [Step("a-fault", "m02", (action,)), Step("add-member", "m06", (Join("m06"),))]
    assert place(cast, steps, 2) == {
        "members-01": ["m01", "m03"],
        "members-02": ["m04", "m05"],
        "members-03": ["m06"],
        "members-04": ["m02"],
    }


def test_every_client_fetches_alike() -> None:
    """What is compared is how partitions are assigned."""
    config = ConsumerConfig(zookeeper="z:1", bootstrap="b:1", group="g")
    agent = {key: str(value).lower() for key, value in kafka_settings(config).items()}
    assert CLIENT.items() <= agent.items()
    assert {"fetch.wait.max.ms", "fetch.queue.backoff.ms", "fetch.error.backoff.ms"} < CLIENT.keys()
    tried = set[frozenset[tuple[str, str]]]()  # librdkafka takes a while for each
    for protocol in PROTOCOLS.values():
        for tuning in protocol.settings:
            described, member = (of(tuning, is_growing=True) for of in (protocol.described, protocol.member))
            assert (described.items() >= CLIENT.items()) is (protocol.kind in {"central", "kafka"}), protocol.name
            assert (described.items() >= JAVA_CLIENT.items()) is (protocol.kind in {"java", "helix"}), protocol.name
            assert described.items() >= member.items()
            if protocol.kind == "kafka" and frozenset(member.items()) not in tried:
                tried.add(frozenset(member.items()))
                assert fault({"bootstrap.servers": "b:1", **member}) is None


def test_heartbeats_are_all_that_differs_from_tuned() -> None:
    for protocol in PROTOCOLS.values():
        assert [HEARTBEATS_MS[name] for name in SWEPT] == [50, 100, 200, 1_000, 3_000], "a sweep takes long enough"
        has_heartbeats = protocol.kind in {"kafka", "java"}
        named = ["default", "tuned", *SWEPT] if protocol.has_gateway else [*TUNINGS]
        assert list(protocol.settings) == (named if has_heartbeats else ["default", "tuned"]), protocol.name
        tuned = protocol.settings["tuned"]
        for tuning, ms in HEARTBEATS_MS.items():
            if tuning in protocol.settings:
                other = protocol.settings[tuning]
                assert other.group == tuned.group
                for one, of_tuned in ((other.member, tuned.member), (other.broker, tuned.broker)):
                    changed = dict(one.items() - of_tuned.items())
                    assert set(changed.values()) <= {str(ms)}
                    assert all("heartbeat" in name or name == "topic.metadata.refresh.interval.ms" for name in changed)
                beats = {**other.member, **other.broker, **(other.gateway or {})}
                assert str(ms) in {value for name, value in beats.items() if "heartbeat" in name}


def test_clients_look_for_topics_often_only_where_there_may_be_new_ones() -> None:
    """In `Protocol.member`, look in every scenario: that is a third of the requests of a group at rest.

    Clients that join twice ask often always: librdkafka sends the second JoinGroup at once only after metadata. So do
    classic ones with short heartbeats, which they send when they wake.
    """
    assert [one.name for one in SCENARIOS.values() if one.is_growing(CAST)] == ["partition-growth", "new-topic"]
    looks = {"topic.metadata.refresh.interval.ms", "metadata.max.age.ms"}
    for protocol in PROTOCOLS.values():
        for tuning in protocol.settings:
            found = []
            for is_growing in (False, True):
                controller = protocol.controller(tuning, is_static=True, is_growing=is_growing) or {}
                found.append(looks & {*controller, *protocol.member(tuning, is_growing=is_growing)})
            joins_twice = tuning != "default" and protocol.name in {"classic-cooperative", "gateway-central-classic"}
            wakes = protocol.name in {"classic-range", "gateway-client"} and HEARTBEATS_MS.get(tuning, 500) < 500
            assert bool(found[0]) == (joins_twice or wakes), (protocol.name, tuning)
            has_own = protocol.kind in {"central", "zookeeper"}  # ZooKeeper tells them
            assert len(found[1]) == (tuning != "default" and not has_own), (protocol.name, tuning)
    assert PROTOCOLS["helix"].member("tuned", is_growing=True) == PROTOCOLS["helix"].settings["tuned"].member


def test_helix_keeps_the_partitions_of_a_static_member_for_a_session() -> None:
    helix = PROTOCOLS["helix"]
    assert helix.controller("default", is_static=False, is_growing=False) == {}
    assert helix.controller("default", is_static=True, is_growing=False) == {"rebalance.delay.ms": "30000"}
    tuned = helix.controller("tuned", is_static=True, is_growing=False) or {}
    assert tuned["rebalance.delay.ms"] == tuned["zk.session.timeout"] == "6000"
    others = [protocol for protocol in PROTOCOLS.values() if protocol is not helix]
    assert not any(one.controller(tuning, is_static=True, is_growing=True) for one in others for tuning in one.settings)


def test_helix_controller_and_members_have_sessions_of_the_same_length() -> None:
    for settings in PROTOCOLS["helix"].settings.values():
        assert (settings.controller or {}).get(HELIX_SESSION) == settings.member.get(HELIX_SESSION)


def test_the_java_client_waits_for_no_backoff_after_a_heartbeat() -> None:
    """In `PROTOCOLS`, leave the client's own backoffs: on average, a heartbeat of 500 ms comes after 750 ms."""
    for tuning, settings in PROTOCOLS["java-848"].settings.items():
        backoffs = [settings.member.get(name) for name in ("retry.backoff.ms", "retry.backoff.max.ms")]
        assert backoffs == ([None, None] if tuning == "default" else ["50", "50"])


def test_a_tuned_broker_assigns_each_change_at_once() -> None:
    """In `_consumer_broker`, leave Kafka's defaults: eight members that join at once settle a second later."""
    for name in ("kip848", "java-848"):
        for tuning, settings in PROTOCOLS[name].settings.items():
            keys = ("group.consumer.assignment.interval.ms", "group.consumer.assignor.offload.enable")
            values = [settings.broker.get(key) for key in keys]
            assert values == ([None, None] if tuning == "default" else ["0", "false"]), (name, tuning)


def test_a_gateway_takes_its_options() -> None:
    """In the option `--consumer-heartbeat-interval-ms`, take 100 ms at least: part of a sweep would fail."""
    for protocol in PROTOCOLS.values():
        for settings in protocol.settings.values():
            for option, value in (settings.gateway or {}).items():
                parameter = next(one for one in group_coordinator.params if option in one.opts)
                assert parameter.type.convert(value, parameter, None) in {value, int(value) if value.isdigit() else 0}
