"""Configuration files, and validation of a cluster's settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from zkrebalancer.localcluster import kafka, ports, zookeeper
from zkrebalancer.localcluster.cluster import LocalCluster, normal_chroot
from zkrebalancer.localcluster.hosts import HostCluster
from zkrebalancer.localcluster.ports import FixedPorts
from zkrebalancer.localcluster.programs import place_fixed
from zkrebalancer.localcluster.zookeeper import EnsembleMember
from zkrebalancer.protocol.errors import ConfigurationError

DATA = Path("/data")
ENSEMBLE = [EnsembleMember(1, 2, 3), EnsembleMember(4, 5, 6), EnsembleMember(7, 8, 9)]


def parsed(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())


def test_one_zookeeper_allows_short_sessions_and_any_number_of_clients() -> None:
    properties = parsed(zookeeper.render_config(ENSEMBLE[:1], 0, DATA, 200, {}))
    assert properties == {
        "dataDir": "/data",
        "clientPort": "1",
        "clientPortAddress": "127.0.0.1",
        "tickTime": "200",
        "minSessionTimeout": "400",
        "maxSessionTimeout": "60000",
        "maxClientCnxns": "0",
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "*",
    }


def test_an_ensemble_lists_all_members_and_has_limits_in_ticks() -> None:
    properties = parsed(zookeeper.render_config(ENSEMBLE, 1, DATA, 300, {}))
    assert properties["clientPort"] == "4"
    assert [properties[f"server.{number}"] for number in (1, 2, 3)] == [
        "127.0.0.1:2:3",
        "127.0.0.1:5:6",
        "127.0.0.1:8:9",
    ]
    assert (properties["initLimit"], properties["syncLimit"]) == ("34", "10")


def test_a_zookeeper_mode_broker_uses_the_chroot() -> None:
    properties = parsed(kafka.render_zookeeper_mode(1, 9, "127.0.0.1:1/a", DATA, {}))
    assert properties["zookeeper.connect"] == "127.0.0.1:1/a"
    assert properties["auto.create.topics.enable"] == "false"
    assert properties["offsets.topic.replication.factor"] == "1"


def test_a_kraft_server_is_broker_and_controller() -> None:
    properties = parsed(kafka.render_kraft_mode(1, 9, 10, DATA, {}))
    assert properties["process.roles"] == "broker,controller"
    assert properties["controller.quorum.voters"] == "1@127.0.0.1:10"
    assert properties["advertised.listeners"] == "PLAINTEXT://127.0.0.1:9"


@pytest.mark.parametrize(
    "text",
    [
        zookeeper.render_config(ENSEMBLE, 0, DATA, 200, {"tickTime": "7", "extra.key": "v"}),
        kafka.render_zookeeper_mode(1, 9, "", DATA, {"tickTime": "7", "extra.key": "v"}),
        kafka.render_kraft_mode(1, 9, 10, DATA, {"tickTime": "7", "extra.key": "v"}),
    ],
)
def test_extra_properties_add_and_override(text: str) -> None:
    assert (parsed(text)["tickTime"], parsed(text)["extra.key"]) == ("7", "v")


def test_hosts_of_a_connection_string() -> None:
    assert zookeeper.split_hosts("a:1,b.c:22/x/y") == [("a", 1), ("b.c", 22)]


@pytest.mark.parametrize(("given", "normal"), [("", ""), ("/", ""), ("/a", "/a"), ("/a/b-c", "/a/b-c")])
def test_valid_chroots(given: str, normal: str) -> None:
    assert normal_chroot(given) == normal


@pytest.mark.parametrize("chroot", ["a", "/a/", "//", "/a//b", "/a/../b", "/.", "/a,b", "/a b", "/a\n"])
def test_invalid_chroots(chroot: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a path like /a/b"):
        normal_chroot(chroot)


@pytest.mark.parametrize("count", [0, 10])
def test_too_few_or_too_many_brokers_are_an_error(count: int) -> None:
    with pytest.raises(ConfigurationError, match=f"1 to 9 brokers, not {count}"):
        LocalCluster(brokers=count)


@pytest.mark.parametrize(
    ("brokers", "replicas", "in_sync"), [(1, "1", "1"), (2, "2", "1"), (3, "3", "2"), (5, "3", "2")]
)
def test_partitions_have_up_to_three_replicas_and_outlive_one_broker(brokers: int, replicas: str, in_sync: str) -> None:
    properties = kafka.replicated(brokers)
    assert properties["default.replication.factor"] == replicas
    assert properties["offsets.topic.replication.factor"] == replicas
    assert properties["min.insync.replicas"] == in_sync


def test_the_number_of_brokers_is_a_setting_unless_there_is_one() -> None:
    assert LocalCluster(brokers=3, broker_port=9092).settings["brokers"] == "3"
    assert "brokers" not in LocalCluster().settings


def test_hosts_are_one_three_or_five() -> None:
    assert HostCluster(hosts=5, chroot="/a").settings == {"hosts": "5", "chroot": "/a"}
    with pytest.raises(ConfigurationError, match="1, 3, 5 hosts, not 2"):
        HostCluster(hosts=2)


def test_an_ensemble_of_two_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="1 or 3"):
        LocalCluster(zookeepers=2)


def test_fixed_ports_are_settings_of_the_cluster() -> None:
    settings = LocalCluster(zookeeper_port=2181, broker_port=9092).settings
    assert (settings["zookeeper-port"], settings["broker-port"]) == ("2181", "9092")
    assert "broker-port" not in LocalCluster().settings


def test_two_servers_cannot_share_a_port() -> None:
    with pytest.raises(ConfigurationError, match="cannot both listen on port 2183"):
        LocalCluster(zookeepers=3, zookeeper_port=2181, broker_port=2183)
    with pytest.raises(ConfigurationError, match="cannot both listen on port 2181"):
        LocalCluster(brokers=3, zookeeper_port=2181, broker_port=2179)


def test_a_fixed_port_is_not_reserved_for_another_server() -> None:
    (one,) = ports.reserve_ports(1)
    port = one.getsockname()[1]
    one.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("random.sample", lambda _candidates, _count: range(port, port + 100))
        (other,) = ports.reserve_ports(1, (port,))
    assert other.getsockname()[1] > port
    other.close()
    assert place_fixed(FixedPorts((1, 2), (9, 10)), range(100, 112)) == [
        *(9, 101),
        *(1, 103, 104),
        *(2, 106, 107),
        *(108, 109, 110),
        10,
    ]
