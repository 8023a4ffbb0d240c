"""Settings and subscriptions: what is refused, and that the line names the key."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import Any, get_type_hints

import pytest

from consumer_agent.config import ConsumerConfig, ConsumerSettings, subscription
from consumer_agent.kafka.client import kafka_settings
from consumer_agent.kafka_config import is_secret, kafka_config_faults
from zkrebalancer.protocol.errors import ConfigurationError, InvalidNameError, PatternError, RebalancerError
from zkrebalancer.protocol.registration import MAX_STOP_TIMEOUT_MS

REQUIRED: dict[str, Any] = {"zookeeper": "zk:2181", "bootstrap": "kafka:9092", "group": "g"}


def test_the_defaults_are_allowed() -> None:
    config = ConsumerConfig.from_settings(REQUIRED)
    assert (config.session_timeout_ms, config.max_poll_records, config.suspended_policy) == (10_000, 500, "pause")
    assert config.client_id


@pytest.mark.parametrize("zookeeper", ["zk:2181", "a:1,b:2,c:3/ch/root", "[::1]:2181/x", "127.0.0.1:2181/"])
def test_zookeeper_addresses(zookeeper: str) -> None:
    assert ConsumerConfig.from_settings({**REQUIRED, "zookeeper": zookeeper}).zookeeper == zookeeper


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("zookeeper", ""),
        ("zookeeper", "zk:2181x"),
        ("zookeeper", "zk:2181,"),
        ("zookeeper", "zk 2181"),
        ("zookeeper", "zk:2181//double"),
        ("zookeeper", "zk:2181/a/"),
        ("zookeeper", "zk"),
        ("zookeeper", "zk:0"),
        ("bootstrap", "kafka"),
        ("bootstrap", "kafka:65536"),
        ("bootstrap", "kafka:9092/a"),
        ("bootstrap", None),
        ("capacity", -1.0),
        ("capacity", float("nan")),
        ("capacity", True),
        ("session_timeout_ms", 99),
        ("session_timeout_ms", "10000"),
        ("max_poll_records", 0),
        ("max_poll_records", -2),
        ("max_poll_records", 100_001),
        ("poll_fairness", "fair"),
        ("prefetch", None),
        ("prefetch", "none"),
        ("max_poll_records", True),
        ("auto_commit_interval_ms", 0),
        ("enable_auto_commit", "yes"),
        ("auto_offset_reset", "sometimes"),
        ("auto_offset_reset", "2026-01-31T12:00:00"),
        ("auto_offset_reset", "1969-12-31T00:00:00+00:00"),
        ("offsets_storage", "disk"),
        ("suspended_policy", "stop"),
        ("events_directory", 3),
        ("kafka_config", ["fetch.min.bytes"]),
        ("kafka_config", {"fetch.min.bytes": None}),
        ("kafka_config", {"enable.auto.commit": True}),
        ("kafka_config", {"enable.partition.eof": False}),
        ("rack", 5),
        ("client_id", "c" * 164),
        ("unheard_of", 1),
    ],
)
def test_a_setting_that_is_not_allowed_is_named_in_one_line(key: str, value: object) -> None:
    with pytest.raises(ConfigurationError) as refused:
        ConsumerConfig.from_settings({**REQUIRED, key: value})
    assert str(refused.value).startswith(f"{key}: ")
    assert "\n" not in str(refused.value)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize("key", ["group", "client_id", "group_instance_id", "rack"])
def test_names_become_part_of_a_path_and_are_validated(key: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{key}: "):
        ConsumerConfig.from_settings({**REQUIRED, key: "a/b"})


def test_every_fault_is_told_at_once() -> None:
    with pytest.raises(ConfigurationError) as refused:
        ConsumerConfig.from_settings({"zookeeper": "zk", "group": "g", "capacity": -1, "unheard_of": 1})
    assert [part.partition(":")[0] for part in str(refused.value).split("; ") if ": " in part] == [
        "unheard_of",
        "bootstrap",
        "zookeeper",
        "capacity",
    ]


def test_what_may_be_shown() -> None:
    secrets = ["sasl.password", "ssl.key.pem", "ssl.key.password", "sasl.oauthbearer.client.secret", "SASL.Password"]
    secrets.append("sasl.oauthbearer.assertion.private.key.passphrase")
    assert all(map(is_secret, secrets))
    assert not any(map(is_secret, ["sasl.username", "security.protocol", "fetch.wait.max.ms", "ssl.ca.location"]))


def test_a_configuration_that_is_logged_shows_no_passwords() -> None:
    assert "hunter2" not in repr(ConsumerConfig(**REQUIRED, kafka_config={"sasl.password": "hunter2"}))


def test_all_that_is_wrong_with_settings_of_librdkafka_is_told() -> None:
    """By librdkafka itself; what is right for it alone, and what only fails when it connects, is allowed."""
    kafka_config = {
        "group.id": "x",
        "fetch.mim.bytes": 1,
        "fetch.wait.max.ms": "soon",
        "error_cb": "print",
        "throttle_cb": "print",
        "client.id": "x",
        "security": {"protocol": "SSL"},
        "ssl.ca.location": "/no/such/file",
        "security.protocol": "SSL",
        "session.timeout.ms": 400_000,
        "acks": "1",
        "enable.ssl.certificate.verification": False,
    }
    with pytest.raises(ConfigurationError) as refused:
        ConsumerConfig.from_settings({**REQUIRED, "kafka_config": kafka_config})
    told = [text.removeprefix("kafka_config: ") for text in str(refused.value).split("; ")]
    assert told == [
        "group.id is decided by the consumer and may not be set",
        "error_cb must be a function, which only a Python program can set, not 'print'",
        "throttle_cb must be a function, which only a Python program can set, not 'print'",
        "client.id is decided by the consumer and may not be set",
        'security must be a plain value, not dict (quotation marks for names with dots: "security.…")',
        'fetch.mim.bytes is refused by librdkafka: No such configuration property: "fetch.mim.bytes"',
        'fetch.wait.max.ms is refused by librdkafka: Invalid value for configuration property "fetch.wait.max.ms"',
    ]


def test_functions_and_a_log_are_allowed_and_checked() -> None:
    async def waiting(_config: str) -> tuple[str, float]:
        return "", 0.0

    log = logging.getLogger("mine")
    allowed = {"oauth_cb": lambda _: ("", 0.0), "stats_cb": print, "error_cb": waiting, "throttle_cb": print}
    protocol = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "statistics.interval.ms": 5}
    assert kafka_config_faults({**allowed, **protocol, "logger": log}) == []
    assert kafka_config_faults({"oauth_cb": waiting, "logger": "mine", "rebalance_cb": print}) == [
        "oauth_cb may not be a coroutine function: a thread of librdkafka calls it",
        "logger must be a logging.Logger, not 'mine'",
        "rebalance_cb must be a plain value, not builtin_function_or_method",
    ]


def test_what_librdkafka_says_about_a_setting_is_one_line() -> None:
    with pytest.raises(ConfigurationError, match=r"^kafka_config: socket.timeout.ms is refused.* 10\.\.300000\Z"):
        ConsumerConfig.from_settings({**REQUIRED, "kafka_config": {"socket.timeout.ms": 1}})


def test_settings_of_librdkafka_that_need_each_other_are_refused_together() -> None:
    with pytest.raises(ConfigurationError, match=r"^kafka_config: librdkafka refuses it: .*`sasl.oauthbearer"):
        ConsumerConfig.from_settings(
            {**REQUIRED, "kafka_config": {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.method": "oidc"}}
        )


@pytest.mark.parametrize("key", sorted(REQUIRED))
def test_what_is_required_is_named(key: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{key}: is required"):
        ConsumerConfig.from_settings({name: REQUIRED[name] for name in REQUIRED if name != key})


def test_kafka_settings_can_be_overridden() -> None:
    overrides = {"fetch.wait.max.ms": 7, "security.protocol": "SSL"}
    config = ConsumerConfig.from_settings({**REQUIRED, "rack": "r1", "kafka_config": overrides})
    settings = kafka_settings(config)
    assert settings.items() >= {**overrides, "client.rack": "r1", "enable.auto.commit": False}.items()


def test_subscriptions() -> None:
    assert subscription(["a", "b"], None, "white_list").threads == {"a": 1, "b": 1}
    assert subscription({"a": 3}, None, "white_list").topics == ("a",)
    assert subscription(["t" * 249], None, "white_list").topics == ("t" * 249,)  # as long as Kafka allows
    by_pattern = subscription(None, "^pay", "black_list")
    assert (by_pattern.kind, by_pattern.threads, by_pattern.topics) == ("black_list", {"^pay": 1}, ())


@pytest.mark.parametrize(
    ("topics", "pattern", "pattern_type", "error"),
    [
        (None, None, "white_list", ConfigurationError),
        (["a"], "a", "white_list", ConfigurationError),
        ([], None, "white_list", ConfigurationError),
        ("orders", None, "white_list", ConfigurationError),
        ([1], None, "white_list", ConfigurationError),
        (["a/b"], None, "white_list", InvalidNameError),
        ({"a": 0}, None, "white_list", ConfigurationError),
        ({"a": 1_001}, None, "white_list", ConfigurationError),
        ({"a": True}, None, "white_list", ConfigurationError),
        (None, "(", "white_list", PatternError),
        (None, "a", "grey_list", ConfigurationError),
    ],
)
def test_subscriptions_that_are_refused(
    topics: Any, pattern: str | None, pattern_type: str, error: type[RebalancerError]
) -> None:
    with pytest.raises(error) as refused:
        subscription(topics, pattern, pattern_type)
    assert "\n" not in str(refused.value)


def test_the_package_is_light() -> None:
    """An application that imports the agent does not pay for what only the others need."""
    code = "import sys, consumer_agent; print('\\n'.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"gevent", "kazoo", "msgpack", "numpy", "pyspark", "click", "rich", "re2", "pandas", "prometheus_client"}
    heavy |= {"confluent_kafka.admin", "confluent_kafka.schema_registry", "importlib.metadata"}
    heavy |= {"consumer_agent.membership.effects", "consumer_agent.runtime.engine"}  # many classes
    assert heavy & set(loaded) == set()
    runtime = ("zkrebalancer.runtime.logs", "zkrebalancer.runtime.zk")
    allowed = ("zkrebalancer.protocol", *runtime, "zkrebalancer.observe.events")
    parents = ("zkrebalancer", "zkrebalancer.runtime", "zkrebalancer.observe")
    ours = [name for name in loaded if name.startswith("zkrebalancer")]
    assert [name for name in ours if name not in parents and not name.startswith(allowed)] == []
    assert "zkrebalancer.protocol.patterns" not in loaded


def test_a_consumer_needs_neither_numpy_nor_what_prints() -> None:
    """As the page about coming over says, which installs without them; `Engine` has all that a consumer uses."""
    code = """if True:
        import sys
        sys.modules |= dict.fromkeys(["click", "numpy", "prometheus_client", "rich"])
        from consumer_agent import AsyncConsumer, Consumer
        from consumer_agent.runtime import engine, workers
        consumer = Consumer(zookeeper="z:1", bootstrap="b:1", group="g")
        consumer.subscribe(pattern="^pay")
    """
    subprocess.run([sys.executable, "-c", code], check=True)


def test_type_checkers_know_every_setting_of_a_consumer() -> None:
    assert get_type_hints(ConsumerSettings) == get_type_hints(ConsumerConfig)


@pytest.mark.parametrize(
    ("settings", "registered"),
    [
        ({"max_poll_interval_ms": 60_000}, 60_000),
        ({"max_poll_interval_ms": MAX_STOP_TIMEOUT_MS + 1}, MAX_STOP_TIMEOUT_MS),  # more would not be understood
        ({"max_poll_interval_ms": 60_000, "stop_timeout_ms": 5_000}, 5_000),
    ],
)
def test_how_long_a_stop_may_take_is_registered_as_polls_may_take(settings: dict[str, int], registered: int) -> None:
    assert ConsumerConfig(**REQUIRED, **settings).registered_stop_timeout_ms == registered  # type: ignore[arg-type]
