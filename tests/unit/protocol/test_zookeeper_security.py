"""Settings of TLS and of the login: which go together, and that no secret is shown."""

from __future__ import annotations

import pytest

from zkrebalancer.protocol.errors import ConfigurationError
from zkrebalancer.protocol.zookeeper_security import PLAIN, ZooKeeperSecurity, from_variables

WORD = "only-for-operators"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"auth": "kerberos"}, "zookeeper_auth must be sasl or digest, not 'kerberos'"),
        ({"tls_key": "k"}, "zookeeper_tls_key needs zookeeper_tls_certificate"),
        ({"user": "u", "password": WORD, "password_file": "f"}, "exclude each other"),
        ({"user": "u"}, "zookeeper_user needs zookeeper_password_file"),
        ({"password": WORD}, "a password needs zookeeper_user"),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text) as caught:
        ZooKeeperSecurity(**settings)  # type: ignore[arg-type]
    assert WORD not in str(caught.value)


def test_the_environment() -> None:
    assert from_variables({"ZKREBALANCER_ZOOKEEPER": "h:1", "ZKREBALANCER_ZOOKEEPER_USER": ""}) == PLAIN
    found = from_variables({"ZKREBALANCER_ZOOKEEPER_USER": "u", "ZKREBALANCER_ZOOKEEPER_PASSWORD": WORD})
    assert found == ZooKeeperSecurity(user="u", password=WORD)
    assert not found.uses_tls
    assert WORD not in repr(found)
    assert from_variables({"ZKREBALANCER_ZOOKEEPER_TLS": "TRUE"}).uses_tls
    assert from_variables({"ZKREBALANCER_ZOOKEEPER_TLS_CA": "ca.pem"}).uses_tls
    with pytest.raises(ConfigurationError, match="must be true or false"):
        from_variables({"ZKREBALANCER_ZOOKEEPER_TLS": "yes"})
