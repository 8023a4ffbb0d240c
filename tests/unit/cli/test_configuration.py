"""Settings from files, the environment and flags; errors about wrong ones; what SIGHUP changes."""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from consumer_agent.kafka_config import is_secret
from zkrebalancer.cli import options
from zkrebalancer.cli.configuration import ConfiguredCommand, Reload, settings_of
from zkrebalancer.cli.coordinator import coordinator
from zkrebalancer.cli.group_coordinator import group_coordinator
from zkrebalancer.cli.topics import mirror
from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.runtime.toml_file import MAX_FILE_BYTES


@click.command(cls=ConfiguredCommand)
@options.zookeeper_option
@click.option("--size-ms", type=click.IntRange(1, 100), default=5)
@click.option("--share", type=click.FloatRange(0, 1), default=0.5)
@click.option("--is-big", is_flag=True)
@options.kafka_options("Brokers.")
@options.log_level_option
def tool(**values: Any) -> None:
    """Print its values."""
    click.echo(repr(values))


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str, name: str = "t.toml") -> str:
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


def values(*arguments: str, command: click.Command = tool, **environment: str) -> dict[str, Any]:
    done = CliRunner().invoke(command, [*arguments, "--print-config"], env=environment, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return tomllib.loads(done.stdout)


def refusal(*arguments: str) -> str:
    done = CliRunner().invoke(tool, ["--zookeeper", "z:1", *arguments], standalone_mode=False)
    assert isinstance(done.exception, click.ClickException | RebalancerError), done.output
    assert isinstance(done.exception, RebalancerError) or done.exception.exit_code == 2
    return done.exception.format_message() if isinstance(done.exception, click.ClickException) else str(done.exception)


def test_the_environment_overrides_the_file_and_flags_override_both(file: Callable[[str], str]) -> None:
    path = file('zookeeper = "z:1"\nsize_ms = 6\nshare = 0.25\nis_big = true\n')
    assert values("--config", path) == {
        "zookeeper": "z:1",
        "size_ms": 6,
        "share": 0.25,
        "is_big": True,
        "log_level": "warning",
    }
    assert values("--config", path, ZKREBALANCER_TOOL_SIZE_MS="7")["size_ms"] == 7
    assert values("--config", path, "--size-ms", "8", ZKREBALANCER_TOOL_SIZE_MS="7")["size_ms"] == 8
    assert values(ZKREBALANCER_TOOL_CONFIG=path, ZKREBALANCER_ZOOKEEPER="y:1")["zookeeper"] == "y:1"


def test_a_second_file_overrides_the_first(file: Callable[..., str]) -> None:
    first, second = file('zookeeper = "z:1"\nsize_ms = 6\n'), file("size_ms = 7\n", "second.toml")
    found = values("--config", first, "--config", second)
    assert (found["zookeeper"], found["size_ms"]) == ("z:1", 7)


def test_librdkafkas_settings_come_from_a_table_and_secrets_are_not_shown(file: Callable[[str], str]) -> None:
    path = file(
        'zookeeper = "z:1"\nbootstrap = "b:1"\n[kafka]\n"sasl.password" = "hush"\n"sasl.username" = "file"\n'
        '"socket.timeout.ms" = 1000\n'
    )
    assert values("--config", path)["kafka"] == {
        "sasl.password": "********",
        "sasl.username": "file",
        "socket.timeout.ms": "1000",
    }
    by_variable = values("--config", path, ZKREBALANCER_KAFKA_SASL_USERNAME="variable")
    assert by_variable["kafka"]["sasl.username"] == "variable"
    by_flag = values("--config", path, "--kafka", "sasl.username=flag", ZKREBALANCER_KAFKA_SASL_USERNAME="variable")
    assert by_flag["kafka"]["sasl.username"] == "flag"
    later = Path(path).with_name("later.toml")
    later.write_text('[kafka]\n"sasl.username" = "later"\n')
    by_two_files = values("--config", path, "--config", str(later))["kafka"]
    assert by_two_files == {**values("--config", path)["kafka"], "sasl.username": "later"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sise_ms = 6", "{}: sise_ms: there is no such setting; did you mean size_ms?"),
        ("size_ms = 0", "{}: size_ms: 0 is not in the range 1<=x<=100."),
        ("size_ms = true", "{}: size_ms: must be an integer, not True"),
        ('size_ms = "6"', "{}: size_ms: must be an integer, not '6'"),
        ("share = 1.5", "{}: share: 1.5 is not in the range 0<=x<=1."),
        ('is_big = "yes"', "{}: is_big: must be true or false, not 'yes'"),
        ("zookeeper = 1", "{}: zookeeper: must be a string, not 1"),
        ("kafka = 1", "{}: kafka: must be a table of texts and numbers"),
        ('bootstrap = "b:1"\n[kafka]\n"fetch.mim.bytes" = 1', "Invalid value for kafka in {}: "),
        ("x = ", "{}: is not TOML: "),
        ("x = " + "[" * 100_000, "{}: is not TOML: "),
        (
            "[kafka]\nsasl.password = 'secret'",
            '{}: kafka: must be a table of texts and numbers; put quotes around "keys.with',
        ),
        ("# " + "x" * MAX_FILE_BYTES, "{}: is too large: more than 1,000,000 bytes"),
        ('zookeeper = "z:1/\\u0000"', "{}: zookeeper: must not contain the character NUL"),
        ('[kafka]\n"sasl.password" = "\\u0000"', "{}: kafka: must not contain the character NUL"),
        ("config = 'x'", "{}: config: there is no such setting; "),
    ],
)
def test_what_is_wrong_in_a_file_is_said_in_a_line_that_names_it(
    file: Callable[[str], str], text: str, expected: str
) -> None:
    path = file(text)
    said = refusal("--config", path)
    assert said.startswith(expected.format(path))
    assert "\n" not in said


@pytest.mark.parametrize("command", [coordinator, group_coordinator, mirror])
def test_no_option_takes_a_secret_only_a_file_with_one(command: click.Command) -> None:
    """Errors and `--print-config` show the values of all options."""
    named = [key for key in settings_of(command) if is_secret(key.replace("_", "."))]
    assert all(key.endswith("_file") for key in named), named


def test_a_missing_file_is_named() -> None:
    assert refusal("--config", "nowhere.toml") == "nowhere.toml: cannot be read: No such file or directory"


def test_a_variable_that_is_no_setting_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    values("--zookeeper", "z:1", ZKREBALANCER_TOOL_SISE_MS="1")
    assert caplog.messages == ["ZKREBALANCER_TOOL_SISE_MS is not a setting and is ignored"]


def test_what_is_printed_is_a_file_for_the_same_settings(file: Callable[[str], str]) -> None:
    for command, arguments in (
        (coordinator, ["--broker-id", "1", "--http", "h:1", "--metrics-per-group"]),
        (group_coordinator, ["--listen", "h:9192", "--upstream", "b:1,b:2", "--assign", "central"]),
    ):
        assert isinstance(command, ConfiguredCommand)
        done = CliRunner().invoke(command, ["--zookeeper", "z:1/c", *arguments, "--print-config"])
        again = CliRunner().invoke(command, ["--config", file(done.output), "--print-config"])
        assert done.exit_code == again.exit_code == 0, done.output + again.output
        assert tomllib.loads(again.output) == tomllib.loads(done.output)


def test_printing_creates_no_folder(file: Callable[[str], str], tmp_path: Path) -> None:
    folder = tmp_path / "events"
    path = file(f'zookeeper = "z:1"\nbroker_id = 1\nevents = "{folder}"\n')
    assert values("--config", path, command=coordinator)["events"] == str(folder)
    assert values("--config", path, "--events", str(folder), command=coordinator)["events"] == str(folder)
    assert not folder.exists()


def test_settings_that_can_change_do_and_others_are_warned_of(
    file: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    path = file('zookeeper = "z:1"\nsize_ms = 6\nshare = 0.25\n')
    level = logging.getLogger().level
    context = tool.make_context("tool", ["--config", path])
    changed: list[int] = []
    reload = Reload(context, {"size_ms": changed.append})
    reload()
    assert changed == []
    file('zookeeper = "z:1"\nsize_ms = 7\nshare = 0.75\nlog_level = "info"\n')
    reload()
    assert (changed, logging.getLogger().level) == ([7], logging.INFO)
    assert caplog.messages == ["a restart is needed for the new values of share"]
    caplog.clear()
    file('zookeeper = "z:1"\nsize_ms = 0\n')
    reload()
    assert changed == [7]
    assert caplog.messages == [f"the former settings stay in force: {path}: size_ms: 0 is not in the range 1<=x<=100."]
    file('zookeeper = "z:1"\nsize_ms = 6\nshare = 0.25\n')
    reload()
    assert changed == [7, 6], "back to the first value, which is not the present one"
    logging.getLogger().setLevel(level)
