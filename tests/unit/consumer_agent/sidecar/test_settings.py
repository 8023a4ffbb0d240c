"""Settings from a file, the environment and flags: which one applies, and that all mistakes are reported at once."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from consumer_agent.config import ConsumerConfig
from consumer_agent.sidecar.settings import KINDS, Settings, as_toml, effective, find_faults, fit_revoke_timeout, gather
from zkrebalancer.protocol.zookeeper_security import ZooKeeperSecurity
from zkrebalancer.runtime.toml_file import MAX_FILE_BYTES

FLAGS: dict[str, Any] = {"zookeeper": "zk:2181", "bootstrap": "kafka:9092", "group": "g", "topics": ["t"]}


def faults(*, file: str | None = None, environment: dict[str, str] | None = None, **flags: Any) -> list[str]:
    return find_faults(gather([] if file is None else [file], environment or {}, flags))


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "agent.toml"
    path.write_text(text)
    return str(path)


def test_flags_count_more_than_the_environment_and_that_more_than_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, 'group = "from-file"\nrack = "r1"\nclient_id = "c1"\nsession_timeout_ms = 5000\n')
    environment = {"CONSUMER_AGENT_GROUP": "from-env", "CONSUMER_AGENT_RACK": "r2", "CONSUMER_AGENT_CONFIG": file}
    settings = gather((), environment, {"group": "from-flag"})
    assert settings.values == {"group": "from-flag", "rack": "r2", "client_id": "c1", "session_timeout_ms": 5_000}
    assert settings.origins == {
        "group": "--group",
        "rack": "CONSUMER_AGENT_RACK",
        "client_id": f"{file}: client_id",
        "session_timeout_ms": f"{file}: session_timeout_ms",
    }


def test_settings_of_librdkafka_are_merged_key_by_key(tmp_path: Path) -> None:
    file = written(tmp_path, '[kafka_config]\n"security.protocol" = "SSL"\n"sasl.password" = "a"\n"log_level" = 3\n')
    environment = {"CONSUMER_AGENT_KAFKA_SASL_PASSWORD": "b"}
    settings = gather([file], environment, {"kafka_config": ["fetch.wait.max.ms=7", "ssl.ca.pem=a=b"]})
    assert settings.values["kafka_config"] == {
        "security.protocol": "SSL",
        "sasl.password": "b",
        "log_level": 3,
        "fetch.wait.max.ms": "7",
        "ssl.ca.pem": "a=b",
    }


def test_texts_become_what_their_settings_want() -> None:
    environment = {
        "CONSUMER_AGENT_TOPICS": "a:2,b",
        "CONSUMER_AGENT_CAPACITY": "0.5",
        "CONSUMER_AGENT_MAX_POLL_RECORDS": "-1",
        "CONSUMER_AGENT_ENABLE_AUTO_COMMIT": "False",
    }
    values = gather((), environment, {}).values
    assert values == {"topics": ["a:2", "b"], "capacity": 0.5, "max_poll_records": -1, "enable_auto_commit": False}


def test_the_older_variable_for_zookeeper_counts_less() -> None:
    both = {"ZKREBALANCER_ZOOKEEPER": "old:1", "CONSUMER_AGENT_ZOOKEEPER": "new:1"}
    assert gather((), both, {}).values == {"zookeeper": "new:1"}
    assert gather((), {"ZKREBALANCER_ZOOKEEPER": "old:1"}, {}).values == {"zookeeper": "old:1"}


def test_variables_that_only_look_like_settings_are_named_and_ignored() -> None:
    """Kubernetes sets CONSUMER_AGENT_PORT for a service of that name."""
    settings = gather((), {"CONSUMER_AGENT_PORT": "tcp://1", "CONSUMER_AGENT_FAILPOINT": "x", "OTHER": "y"}, FLAGS)
    assert settings.ignored == ["CONSUMER_AGENT_PORT"]
    assert find_faults(settings) == []


def test_all_that_is_wrong_is_told_each_with_its_origin(tmp_path: Path) -> None:
    file = written(tmp_path, 'rack = "a b"\nunheard_of = 1\n[kafka_config]\n"enable.partition.eof" = false\n')
    environment = {"CONSUMER_AGENT_CAPACITY": "much", "CONSUMER_AGENT_BOOTSTRAP": "kafka"}
    found = faults(file=file, environment=environment, session_timeout_ms="soon", topics=["t:many"])
    for beginning in (
        f"{file}: unheard_of: there is no such setting",
        "zookeeper (--zookeeper, CONSUMER_AGENT_ZOOKEEPER or zookeeper in the file): is required",
        "group (--group, ",
        "CONSUMER_AGENT_BOOTSTRAP: expected HOST:PORT",
        f"{file}: rack: ",
        "CONSUMER_AGENT_CAPACITY: must be a number of at least 0, not 'much'",
        "--session-timeout-ms: must be 100 to",
        f"{file}: kafka_config: enable.partition.eof is decided by the consumer",
        "--topic: 't:many'",
    ):
        assert [line for line in found if line.startswith(beginning)], (beginning, found)
    assert len(found) == 9
    assert not any("\n" in line for line in found)


@pytest.mark.parametrize("text", ["group = ", "= 1", "\x00"])
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, text: str) -> None:
    (found,) = find_faults(gather([written(tmp_path, text)], {}, FLAGS))
    assert found.startswith(f"{tmp_path}/agent.toml: is not TOML: ")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    (found,) = find_faults(gather([f"{tmp_path}/x.toml"], {}, FLAGS))
    assert found == f"{tmp_path}/x.toml: cannot be read: No such file or directory"


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    (found,) = find_faults(gather([written(tmp_path, "# " + "x" * MAX_FILE_BYTES)], {}, FLAGS))
    assert found == f"{tmp_path}/agent.toml: is too large: more than 1,000,000 bytes"


@pytest.mark.parametrize(
    ("flags", "origin"),
    [
        ({"topics": ["a/b"]}, "--topic: "),
        ({"topics": ["t"], "pattern": "t"}, "--pattern: "),
        ({"topics": ["t:0"]}, "--topic: "),
        ({"pattern": "t("}, "--pattern: "),
        ({}, "topics (--topic, "),
        ({"topics": ["t"], "max_failures": "3"}, "--max-failures: applies only with --exec"),
        ({"topics": ["t"], "dead_letter": "file:x"}, "--dead-letter: applies only with --exec"),
        ({"topics": ["t"], "http": "8080"}, "--http: must be HOST:PORT"),
        ({"topics": ["t"], "http": "a:1,b:2"}, "--http: must be HOST:PORT"),
        ({"topics": ["t"], "log_level": "loud"}, "--log-level: "),
        ({"topics": ["t"], "prefetch": "none"}, "--prefetch: must be total or per_partition"),
        ({"topics": ["t"], "exec": "sh -c 'x"}, "--exec: cannot be split into words: No closing quotation"),
        ({"topics": ["t"], "exec": "c", "frames": "xml"}, "--frames: "),
        ({"topics": ["t"], "exec": "c", "dead_letter": "x"}, "--dead-letter: must be topic:NAME or file:PATH"),
        ({"topics": ["t"], "exec": "c", "dead_letter": "topic:a b"}, "--dead-letter: "),
        ({"topics": ["t"], "exec": "c", "dead_letter": "topic:t"}, "--dead-letter: topic t is one of those"),
        ({"pattern": "^t", "exec": "c", "dead_letter": "topic:t-dead"}, "--dead-letter: topic t-dead is one of"),
        ({"topics": ["t"], "exec": "c", "max_failures": "11"}, "--max-failures: 11 is more than max_restarts (10)"),
        ({"topics": ["t"], "exec": "c", "max_in_flight_records": "0"}, "--max-in-flight-records: must be"),
        ({"topics": ["t"], "exec": "c", "enable_auto_commit": "false"}, "--enable-auto-commit: must be true"),
        ({"topics": ["t"], "exec": "c", "revoke_timeout_ms": "300000"}, "--revoke-timeout-ms: 300000 is not below"),
    ],
)
def test_what_is_refused(flags: dict[str, Any], origin: str) -> None:
    required = {key: FLAGS[key] for key in ("zookeeper", "bootstrap", "group")}
    (found,) = faults(**required, **flags)
    assert found.startswith(origin)


def test_a_setting_of_librdkafka_is_refused_where_it_was_written(tmp_path: Path) -> None:
    file = written(tmp_path, '[kafka_config]\n"enable.partition.eof" = false\n')
    (fault,) = faults(file=file, **FLAGS, kafka_config=["fetch.wait.max.ms=7"])
    assert fault.startswith(f"{file}: kafka_config: enable.partition.eof is decided")
    found = faults(
        file=written(tmp_path, '[kafka_config]\nsecurity.protocol = "SSL"\n'),
        environment={"CONSUMER_AGENT_KAFKA_FETCH_MIM_BYTES": "1"},
        **FLAGS,
        kafka_config=["group.id=x", "fetch.wait.max.ms=soon", "client.id=x"],
    )
    assert [line.partition(": ")[0] for line in found] == [
        file,
        "--kafka group.id",
        "--kafka client.id",
        "CONSUMER_AGENT_KAFKA_FETCH_MIM_BYTES",
        "--kafka fetch.wait.max.ms",
    ]


def test_a_dead_letter_topic_of_its_own_is_allowed() -> None:
    assert faults(**FLAGS, exec="c", dead_letter="topic:t-dead") == []
    assert faults(**FLAGS, exec="c", dead_letter="file:t") == []


@pytest.mark.parametrize(
    "wanted",
    [
        {"pattern": ".*"},
        {"pattern": "^internal", "pattern_type": "black_list"},
        {"pattern": "orders", "exec": "c", "dead_letter": "file:orders.jsonl"},
        {"pattern": "^orders$", "exec": "c", "dead_letter": "topic:orders-dead"},
        {"pattern": "^orders-dead$", "pattern_type": "black_list", "exec": "c", "dead_letter": "topic:orders-dead"},
    ],
)
def test_a_pattern_is_compared_only_with_a_topic_of_dead_letters(wanted: dict[str, Any]) -> None:
    """In `_subscription_faults`, compare the empty name, and files: `.*` and all black lists were refused."""
    required = {key: FLAGS[key] for key in ("zookeeper", "bootstrap", "group")}
    assert faults(**required, **wanted) == []


def test_what_is_printed_can_be_read_again_and_hides_secrets(tmp_path: Path) -> None:
    kafka = ["sasl.password=hunter2", "sasl.username=me"]
    flags = {**FLAGS, "exec": 'sh -c "x"', "kafka_config": kafka, "max_failures": "5"}
    settings = gather((), {}, flags)
    text = as_toml(effective(settings))
    assert "hunter2" not in text
    assert "max_failures = 5  # --max-failures" in text
    assert "session_timeout_ms = 10000  # default" in text
    document = tomllib.loads(text)
    assert document["kafka_config"] == {"sasl.password": "********", "sasl.username": "me"}
    again = gather([written(tmp_path, text)], {}, {})
    assert find_faults(again) == []
    assert {key: again.values[key] for key in settings.values if key != "kafka_config"} == {
        key: settings.values[key] for key in settings.values if key != "kafka_config"
    }


def test_what_only_toml_writes_is_printed_too(tmp_path: Path) -> None:
    required = 'zookeeper = "z:1"\nbootstrap = "b:1"\ngroup = "g"\ntopics = ["t"]\n'
    own = 'auto_offset_reset = 2026-01-31T12:00:00Z\nexec = "echo \U0001f600"\n'
    settings = gather([written(tmp_path, required + own)], {}, {})
    assert find_faults(settings) == []
    again = tomllib.loads(as_toml(effective(settings)))
    assert (again["auto_offset_reset"], again["exec"]) == ("2026-01-31 12:00:00+00:00", "echo \U0001f600")


@pytest.mark.parametrize("text", ["kafka_config = 5", 'kafka_config = "x"', "auto_offset_reset = [1]", "exec = []"])
def test_a_setting_of_another_kind_is_named(tmp_path: Path, text: str) -> None:
    file = written(tmp_path, text)
    found = faults(file=file, environment={"CONSUMER_AGENT_KAFKA_FETCH_MIN_BYTES": "1"}, **FLAGS)
    assert found
    assert all(line.startswith(f"{file}: {text.partition(' ')[0]}: must be") for line in found)


STRANGE = (
    *(
        '""',
        '"a\\nb"',
        '"a\\u0000b"',
        '"\\u007f"',
        '"a"',
        "0",
        "-1",
        "9" * 30,
        "1.5",
        "nan",
        "true",
        "[]",
        "[1]",
        '[["a"]]',
    ),
    *(
        "{}",
        "{a = {b = 1}}",
        '{error_cb = "x"}',
        "{a = nan}",
        "2026-01-31",
        "12:00:00",
        "2026-01-31T12:00:00",
        '"topic:"',
    ),
    *('"file:a\\u0000"', '["a:1", "a:2"]', '["a\\u0000"]', '"::1:80"', '"[::1]:80"', '"9999-12-31T23:59:59-23:59"'),
)


@pytest.mark.parametrize("key", KINDS)
@pytest.mark.parametrize("more", ["", 'exec = "cat"\n'])
def test_whatever_is_written_is_refused_in_one_line_or_can_be_used(tmp_path: Path, key: str, more: str) -> None:
    required = {"zookeeper": '"z:1"', "bootstrap": '"b:1"', "group": '"g"', "topics": '["t"]'}
    for value in STRANGE:
        own = {name: required[name] for name in required if name != key and (name, key) != ("topics", "pattern")}
        others = "" if key == "exec" else more
        text = "".join(f"{name} = {own[name]}\n" for name in own)
        settings = gather([written(tmp_path, f"{others}{text}{key} = {value}\n")], {}, {})
        found = find_faults(settings)
        assert not any("\n" in line for line in found)
        if not found:
            assert "\0" not in str(settings.values.get(key))
            ConsumerConfig(**settings.group_of(ConsumerConfig))
            again = tomllib.loads(as_toml(effective(settings)))
            assert again["group"] == settings.values["group"]


def test_nothing_is_shown_of_a_child_that_there_is_not() -> None:
    assert "max_failures" not in effective(gather((), {}, FLAGS))
    assert isinstance(gather((), {}, FLAGS), Settings)


def test_the_time_for_a_revoke_has_to_fit_into_that_of_the_group() -> None:
    given = gather((), {}, {**FLAGS, "exec": "cat", "revoke_timeout_ms": "9000"})
    assert fit_revoke_timeout(given, 1, 9_001) == fit_revoke_timeout(given, 9_001, 1) == (9_000, [])
    (fault,) = fit_revoke_timeout(given, 8_000, 9_000)[1]
    assert fault.startswith("--revoke-timeout-ms: 9000 is not below rebalance_timeout_ms of group g (9000)")
    (fault,) = fit_revoke_timeout(given, 9_000, 8_000)[1]
    assert fault.startswith("--revoke-timeout-ms: 9000 is not below stop_timeout_ms (9000)")


def test_unless_it_is_given_it_follows_what_the_coordinator_allows_and_is_no_longer_than_the_default() -> None:
    default = gather((), {}, {**FLAGS, "exec": "cat"})
    limits = [(1, 30_000), (1, 3_000), (3_000, 1), (1, 600_000), (600_000, 1)]
    assert [fit_revoke_timeout(default, *limit) for limit in limits] == [
        (20_000, []),
        (2_000, []),
        (2_000, []),
        (20_000, []),
        (20_000, []),
    ]


def test_zookeepers_security_comes_from_variables_that_all_commands_share() -> None:
    environment = {
        "ZKREBALANCER_ZOOKEEPER_USER": "u",
        "ZKREBALANCER_ZOOKEEPER_PASSWORD": "hidden",
        "ZKREBALANCER_ZOOKEEPER_TLS": "true",
        "CONSUMER_AGENT_ZOOKEEPER_USER": "v",
    }
    settings = gather((), environment, FLAGS)
    assert not find_faults(settings)
    config = ConsumerConfig(**settings.group_of(ConsumerConfig))
    assert config.zookeeper_security == ZooKeeperSecurity(tls=True, user="v", password="hidden")  # noqa: S106  # of this test
    assert "hidden" not in repr(config) + as_toml(effective(settings))


def test_security_settings_that_contradict_each_other_are_one_fault() -> None:
    assert faults(**FLAGS, zookeeper_user="u") == [
        "--zookeeper-user: zookeeper_user needs zookeeper_password_file, or a password in the environment"
    ]
    assert len(faults(**FLAGS, zookeeper_auth="kerberos", zookeeper_user="u")) == 1
