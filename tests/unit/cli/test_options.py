"""Options shared by several commands: accepted values, and errors for the others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from zkrebalancer.cli.options import (
    events_option,
    json_option,
    kafka_options,
    log_level_option,
    make_folder,
    spark_options,
    zookeeper_option,
)
from zkrebalancer.localcluster.server import child_environment


@click.command()
@zookeeper_option
@events_option
@log_level_option
@json_option
def show(**values: object) -> None:
    click.echo(json.dumps(values, default=str))


@click.command()
@spark_options
def compute(**values: object) -> None:
    click.echo(json.dumps(values))


@pytest.mark.parametrize(
    "master",
    ["local", "local[*]", "local[2,3]", "local-cluster[2,1,1024]", "yarn", "spark://h:7077", "k8s://https://h"],
)
def test_spark_options(master: str) -> None:
    result = CliRunner().invoke(compute, ["--master", master, "--memory", "512m"])
    assert json.loads(result.stdout) == {"master": master, "memory": "512m", "settings": {}}


@pytest.mark.parametrize(
    ("option", "text"), [("--master", "localhost"), ("--master", ""), ("--memory", "4"), ("--memory", "0g")]
)
def test_invalid_spark_options_fail_before_spark_starts(option: str, text: str) -> None:
    result = CliRunner().invoke(compute, [option, text])
    assert result.exit_code == 2
    assert f"Invalid value for '{option}': '{text}' is no" in result.stderr


def shown(*arguments: str) -> dict[str, object]:
    result = CliRunner().invoke(show, arguments)
    assert result.exit_code == 0, result.output
    values: dict[str, object] = json.loads(result.stdout)
    return values


@pytest.mark.parametrize("address", ["h:1", "h:2181,i:65535", "127.0.0.1:2181/a/b", "[::1]:2181"])
def test_addresses(address: str) -> None:
    assert shown("--zookeeper", address)["zookeeper"] == address


@pytest.mark.parametrize(
    "address", ["", "h", "h:", ":1", "h:0", "h:65536", "h:x", "h:²", "h:1,", "h:1//a", "h:1/a/", "h:-1"]
)
def test_invalid_addresses_are_rejected(address: str) -> None:
    result = CliRunner().invoke(show, ["--zookeeper", address])
    assert result.exit_code == 2
    assert "Invalid value for '--zookeeper'" in result.stderr


def test_the_address_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZKREBALANCER_ZOOKEEPER", "h:1")
    assert shown()["zookeeper"] == "h:1"


def test_the_events_folder_is_created_empty(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    assert shown("--zookeeper", "h:1", "--events", str(folder))["events_directory"] == str(folder)
    assert folder.is_dir()
    assert list(folder.iterdir()) == []
    assert shown("--zookeeper", "h:1")["events_directory"] is None


def test_an_events_folder_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(show, ["--zookeeper", "h:1", "--events", str(tmp_path / "file" / "events")])
    assert result.exit_code == 2
    assert "Not a directory" in result.stderr


def test_the_log_level_is_checked_and_not_passed_on() -> None:
    assert "log_level" not in shown("--zookeeper", "h:1", "--log-level", "error")
    assert CliRunner().invoke(show, ["--zookeeper", "h:1", "--log-level", "loud"]).exit_code == 2


def test_json_is_a_flag() -> None:
    assert shown("--zookeeper", "h:1", "--json")["as_json"] is True
    assert shown("--zookeeper", "h:1")["as_json"] is False


# ---- --bootstrap and --kafka


@click.command()
@kafka_options("Brokers.")
def ask(kafka: object) -> None:
    click.echo(json.dumps(kafka))


BROKERS = ("--bootstrap", "h:1")
SASL = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "me",
    "sasl.password": "p=q r",
}
VARIABLES = {f"ZKREBALANCER_KAFKA_{key.upper().replace('.', '_')}": text for key, text in SASL.items()}
FLAGS = [text for key, value in SASL.items() for text in ("--kafka", f"{key}={value}")]


def asked(*arguments: str, env: Mapping[str, str] | None = None) -> object:
    result = CliRunner().invoke(ask, arguments, env=env)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_librdkafka_settings_come_from_flags_and_the_environment() -> None:
    everything = {**SASL, "bootstrap.servers": "h:1"}
    assert asked(*FLAGS, *BROKERS) == everything
    assert asked(*BROKERS, env=VARIABLES) == everything
    assert asked(*BROKERS, "--kafka", "sasl.username=you", env=VARIABLES) == {**everything, "sasl.username": "you"}
    assert asked(*BROKERS) == {"bootstrap.servers": "h:1"}


def test_without_brokers_the_environment_is_ignored() -> None:
    assert asked(env={"ZKREBALANCER_KAFKA_PORT": "tcp://10.0.0.1:9092"}) is None


@pytest.mark.parametrize(
    ("flags", "env", "line"),
    [
        (
            ["no.such=1"],
            {},
            '--kafka no.such: no.such is refused by librdkafka: No such configuration property: "no.such"',
        ),
        (
            ["security.protocol=TLS"],
            {},
            "--kafka security.protocol: security.protocol is refused by librdkafka: Invalid value",
        ),
        (["client.id=me"], {}, "Invalid value for --kafka client.id: client.id is decided"),
        (["sasl.mechanism=PLAIN", "security.protocol=SASL_SSL"], {}, "sasl.username and sasl.password must be set"),
        (["error_cb=print"], {}, "error_cb"),
        (["session.timeout.ms=900000"], {}, "`max.poll.interval.ms`must be >= `session.timeout.ms`"),
        ([], {"ZKREBALANCER_KAFKA_PORT": "tcp"}, "ZKREBALANCER_KAFKA_PORT: port is refused by librdkafka: No such"),
        (["hunter2"], {}, "must be KEY=VALUE"),
        (["sasl.passwd=hunter2"], {}, "No such configuration property"),
        (
            ["ssl.key.pem=hunter2", "security.protocol=ssl"],
            {},
            "Invalid value for --kafka ssl.key.pem: ssl.key.pem failed",
        ),
    ],
)
def test_invalid_librdkafka_settings_are_rejected_without_showing_secrets(
    flags: list[str], env: dict[str, str], line: str
) -> None:
    result = CliRunner().invoke(ask, [*BROKERS, *(text for flag in flags for text in ("--kafka", flag))], env=env)
    assert result.exit_code == 2
    assert line in result.stderr
    assert "hunter2" not in result.stderr


def test_librdkafka_settings_without_brokers_are_an_error() -> None:
    result = CliRunner().invoke(ask, ["--kafka", "security.protocol=ssl"])
    assert (result.exit_code, "--kafka has no meaning without --bootstrap" in result.stderr) == (2, True)


def test_a_local_cluster_ignores_settings_for_another_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in VARIABLES.items():
        monkeypatch.setenv(name, text)
    assert not VARIABLES.keys() & child_environment().keys()


@click.command()
@zookeeper_option
def connect(zookeeper: str) -> None:
    click.echo(
        json.dumps([zookeeper, {name: text for name, text in child_environment().items() if "OOKEEPER_" in name}])
    )


def test_the_flags_of_zookeepers_security_reach_children_and_end_with_the_command(tmp_path: Path) -> None:
    word = tmp_path / "word"
    word.write_text("w")
    arguments = ["--zookeeper", "h:1", "--zookeeper-user", "u", "--zookeeper-password-file", str(word)]
    variables = {"ZKREBALANCER_ZOOKEEPER_USER": "of the environment", "ZKREBALANCER_ZOOKEEPER_TLS_CA": "ca"}
    result = CliRunner(env=variables).invoke(connect, [*arguments, "--zookeeper-tls"])
    _, seen = json.loads(result.stdout)
    assert seen == {
        "ZKREBALANCER_ZOOKEEPER_USER": "u",
        "ZKREBALANCER_ZOOKEEPER_PASSWORD_FILE": str(word),
        "ZKREBALANCER_ZOOKEEPER_TLS": "true",
        "ZKREBALANCER_ZOOKEEPER_TLS_CA": "ca",
    }
    assert not [name for name in child_environment() if "OOKEEPER_" in name]


def test_a_password_without_a_user_is_refused() -> None:
    result = CliRunner(env={"ZKREBALANCER_ZOOKEEPER_PASSWORD": "hidden"}).invoke(connect, ["--zookeeper", "h:1"])
    assert result.exit_code != 0
    assert "hidden" not in result.output + str(result.exception)


def test_processes_that_start_at_once_share_an_events_folder(tmp_path: Path) -> None:
    folder = tmp_path / "events"

    def start(_process: int) -> None:
        for _ in range(100):
            make_folder(folder, "--events")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(start, range(8)))
    assert list(folder.iterdir()) == []
