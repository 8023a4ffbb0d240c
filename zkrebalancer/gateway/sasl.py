"""How the gateway itself authenticates to brokers: PLAIN and SCRAM (RFC 5802, 7677). Pure, except for the nonce."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Generator
from dataclasses import dataclass, field

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
MAX_ITERATIONS = 1_000_000
NONCE_BYTES = 24
Exchange = Generator[bytes, bytes, None]  # yields what to send, gets what the broker answers


class LoginError(Exception):
    """The broker's answer does not prove that it knows the password."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """One of MECHANISMS, and the gateway's name and password."""

    mechanism: str
    username: str
    password: str = field(repr=False)


def exchange(credentials: Credentials) -> Exchange:
    """Return the exchange of messages of a login, which raises LoginError."""
    if credentials.mechanism == "PLAIN":
        return _plain(credentials)
    nonce = base64.b64encode(secrets.token_bytes(NONCE_BYTES)).decode()
    return scram(credentials, nonce)


def _plain(credentials: Credentials) -> Exchange:
    yield f"\0{credentials.username}\0{credentials.password}".encode()


def scram(credentials: Credentials, nonce: str) -> Exchange:
    """Return the exchange of messages of a SCRAM login with this nonce."""
    digest = credentials.mechanism.removeprefix("SCRAM-").replace("-", "").lower()
    user = credentials.username.replace("=", "=3D").replace(",", "=2C")
    first = f"n={user},r={nonce}"
    server_first = _text((yield f"n,,{first}".encode()))
    their = _parts(server_first)
    try:
        both, salt, iterations = their["r"], base64.b64decode(their["s"], validate=True), int(their["i"])
    except (KeyError, ValueError):
        raise LoginError("the broker's first message is malformed") from None
    if not both.startswith(nonce) or both == nonce or not 0 < iterations <= MAX_ITERATIONS:
        raise LoginError("the broker's first message does not fit")
    salted = hashlib.pbkdf2_hmac(digest, credentials.password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", digest)
    last = f"c=biws,r={both}"
    signed = f"{first},{server_first},{last}".encode()
    signature = hmac.digest(hashlib.new(digest, client_key).digest(), signed, digest)
    proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
    answer = _parts(_text((yield f"{last},p={base64.b64encode(proof).decode()}".encode())))
    expected = hmac.digest(hmac.digest(salted, b"Server Key", digest), signed, digest)
    try:
        proven = base64.b64decode(answer.get("v", ""), validate=True)
    except ValueError:  # also for characters beyond ASCII
        proven = b""
    if not hmac.compare_digest(proven, expected):
        raise LoginError("the broker does not know the password")


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise LoginError("the broker's message is no text") from None


def _parts(message: str) -> dict[str, str]:
    return {part[:1]: part[2:] for part in message.split(",") if part[1:2] == "="}
