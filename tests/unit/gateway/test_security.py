"""Settings of TLS and SASL: contexts, or one clear line."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from zkrebalancer.gateway import security
from zkrebalancer.protocol.errors import ConfigurationError

TLS = Path(__file__).parents[2] / "support" / "tls"
CERTIFICATE, CA = TLS / "localhost.pem", TLS / "ca.pem"
SASL = {"security.protocol": "sasl_ssl", "sasl.mechanisms": "plain", "sasl.username": "u", "sasl.password": "secret"}


def test_ports_are_plain_without_a_certificate_and_ask_for_one_only_with_an_authority() -> None:
    assert security.listener(None, None, None) is None
    modes = [getattr(security.listener(CERTIFICATE, None, ca), "verify_mode", None) for ca in (None, CA)]
    assert modes == [ssl.CERT_NONE, ssl.CERT_REQUIRED]


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ((TLS / "none.pem", None, None), "--tls-certificate .*none.pem: No such file"),
        ((CA, None, None), "not a certificate and its unencrypted key"),
        ((CA, CERTIFICATE, None), "ca.pem with --tls-key .*localhost.pem: .*key values mismatch"),
        ((CERTIFICATE, TLS, None), "--tls-key .*tls: Is a directory"),
        ((CERTIFICATE, None, Path(__file__)), "--tls-client-ca .*test_security.py"),
        ((None, CERTIFICATE, None), "without --tls-certificate"),
    ],
)
def test_a_bad_file_is_named(files: tuple[Path | None, Path | None, Path | None], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        security.listener(*files)


def test_brokers_are_reached_as_librdkafkas_settings_say() -> None:
    assert security.upstream({}) == security.Upstream()
    secured = security.upstream({**SASL, "ssl.ca.location": str(CA)})
    assert secured.context is not None
    assert (secured.context.check_hostname, secured.context.verify_mode) == (True, ssl.CERT_REQUIRED)
    assert secured.credentials is not None
    assert (secured.credentials.mechanism, secured.credentials.password) == ("PLAIN", "secret")
    assert "secret" not in repr(secured)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"batch.size": "1"}, "batch.size has no meaning for the gateway"),
        ({"security.protocol": "tls"}, "security.protocol is not one of"),
        ({**SASL, "sasl.mechanisms": "GSSAPI"}, "sasl.mechanism is not one of"),
        ({**SASL, "sasl.password": ""}, "sasl.password is missing"),
        ({"security.protocol": "ssl", "ssl.ca.location": "/none"}, "ssl.ca.location /none: No such file"),
        ({"security.protocol": "ssl", "ssl.key.location": str(CERTIFICATE)}, "without ssl.certificate.location"),
        (
            {"security.protocol": "ssl", "ssl.certificate.location": str(CA)},
            "ssl.certificate.location .*unencrypted key",
        ),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(settings: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        security.upstream(settings)
