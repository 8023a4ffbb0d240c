"""TLS of the gateway's own ports, and TLS and SASL towards brokers: turns settings into contexts."""

from __future__ import annotations

import ssl as standard_ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gevent import ssl

from zkrebalancer.gateway.sasl import MECHANISMS, Credentials
from zkrebalancer.protocol.errors import ConfigurationError

PROTOCOL, MECHANISM, USER, WORD = "security.protocol", "sasl.mechanism", "sasl.username", "sasl.password"
CA, CERTIFICATE, KEY = "ssl.ca.location", "ssl.certificate.location", "ssl.key.location"
HOST_CHECK = "ssl.endpoint.identification.algorithm"
PROTOCOLS = frozenset({"plaintext", "ssl", "sasl_plaintext", "sasl_ssl"})
KNOWN = frozenset({PROTOCOL, MECHANISM, USER, WORD, CA, CERTIFICATE, KEY, HOST_CHECK})
ALIASES = {"sasl.mechanisms": MECHANISM}  # librdkafka knows both


@dataclass(frozen=True, slots=True)
class Upstream:
    """How to connect to brokers."""

    context: ssl.SSLContext | None = None
    credentials: Credentials | None = None


def upstream(settings: Mapping[str, str]) -> Upstream:
    """Return how to connect to brokers by librdkafka's settings.

    Raises:
        ConfigurationError: a setting is unknown to the gateway, missing, or names a file that cannot be used.

    """
    given = {ALIASES.get(key, key): text for key, text in settings.items()}
    unknown = sorted(set(given) - KNOWN)
    if unknown:
        raise ConfigurationError(f"{unknown[0]} has no meaning for the gateway; it knows {', '.join(sorted(KNOWN))}")
    protocol = given.get(PROTOCOL, "plaintext").lower()
    if protocol not in PROTOCOLS:
        raise ConfigurationError(f"{PROTOCOL} is not one of {', '.join(sorted(PROTOCOLS))}")
    context = _client_context(given) if protocol.endswith("ssl") else None
    return Upstream(context, _credentials(given) if protocol.startswith("sasl") else None)


def _credentials(given: Mapping[str, str]) -> Credentials:
    mechanism = given.get(MECHANISM, "").upper()
    if mechanism not in MECHANISMS:
        raise ConfigurationError(f"{MECHANISM} is not one of {', '.join(MECHANISMS)}")
    for key in (USER, WORD):
        if not given.get(key):
            raise ConfigurationError(f"{key} is missing")
    return Credentials(mechanism, given[USER], given[WORD])


def _client_context(given: Mapping[str, str]) -> ssl.SSLContext:
    context = _context(standard_ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = given.get(HOST_CHECK, "https").lower() != "none"
    if CA in given:
        _trust(context, CA, given[CA])
    else:
        context.load_default_certs()
    if CERTIFICATE in given:
        _present(context, (CERTIFICATE, given[CERTIFICATE]), (KEY, given.get(KEY, given[CERTIFICATE])))
    elif KEY in given:
        raise ConfigurationError(f"{KEY} has no meaning without {CERTIFICATE}")
    return context


def listener(certificate: Path | None, key: Path | None, client_ca: Path | None) -> ssl.SSLContext | None:
    """Return the context of the gateway's own ports, None for plain ones; raises ConfigurationError.

    `client_ca`: authorities, one of which must have signed a client's certificate.
    """
    if certificate is None:
        if key is not None or client_ca is not None:
            raise ConfigurationError("--tls-key and --tls-client-ca have no meaning without --tls-certificate")
        return None
    context = _context(standard_ssl.PROTOCOL_TLS_SERVER)
    _present(context, ("--tls-certificate", str(certificate)), ("--tls-key", str(key or certificate)))
    if client_ca is not None:
        _trust(context, "--tls-client-ca", str(client_ca))
        context.verify_mode = standard_ssl.CERT_REQUIRED
    return context


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = standard_ssl.TLSVersion.TLSv1_2
    context.options |= standard_ssl.OP_NO_RENEGOTIATION  # one greenlet reads, another one writes
    return context


def _trust(context: ssl.SSLContext, option: str, file: str) -> None:
    try:
        context.load_verify_locations(file)
    except OSError as error:
        raise ConfigurationError(f"{option} {file}: {_reason(error)}") from None


def _present(context: ssl.SSLContext, certificate: tuple[str, str], key: tuple[str, str]) -> None:
    for option, file in (certificate, key):
        try:
            Path(file).read_bytes()
        except OSError as error:
            raise ConfigurationError(f"{option} {file}: {_reason(error)}") from None
    try:
        context.load_cert_chain(certificate[1], key[1], password=str)  # an empty one, instead of asking a terminal
    except (OSError, ValueError) as error:
        where = f"{certificate[0]} {certificate[1]} with {key[0]} {key[1]}"
        raise ConfigurationError(f"{where}: not a certificate and its unencrypted key: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    if isinstance(error, standard_ssl.SSLError):
        return (error.reason or "no PEM file").lower().replace("_", " ")
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
