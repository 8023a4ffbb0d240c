"""Logins: the examples of the standards, and brokers that answer wrongly."""

from __future__ import annotations

import pytest

from zkrebalancer.gateway.sasl import Credentials, LoginError, exchange, scram

PENCIL = Credentials("SCRAM-SHA-256", "user", "pencil")
NONCE = "rOprNGfwEbeRWgbNEkqO"  # the example of RFC 7677
FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
LAST = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_plain_is_one_message() -> None:
    messages = exchange(Credentials("PLAIN", "u", "w"))
    assert next(messages) == b"\0u\0w"
    with pytest.raises(StopIteration):
        messages.send(b"")


def test_scram_is_the_standards_example() -> None:
    messages = scram(PENCIL, NONCE)
    assert next(messages) == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert messages.send(FIRST) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    with pytest.raises(StopIteration):
        messages.send(LAST)


def test_a_name_with_commas_is_escaped() -> None:
    assert next(scram(Credentials("SCRAM-SHA-512", "a=b,c", "w"), "x")) == b"n,,n=a=3Db=2Cc,r=x"


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"\xff",
        b"e=other-error",
        FIRST.replace(b"r=rO", b"r=xx"),
        FIRST.replace(b"i=4096", b"i=0"),
        FIRST.replace(b"i=4096", b"i=2000000000"),
        FIRST.replace(b"s=W22", b"s=?"),
        b"r=" + NONCE.encode() + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
    ],
)
def test_a_first_message_that_does_not_fit_ends_the_login(first: bytes) -> None:
    messages = scram(PENCIL, NONCE)
    next(messages)
    with pytest.raises(LoginError):
        messages.send(first)


@pytest.mark.parametrize("last", [b"", b"v=", b"v=?", b"e=invalid-proof", LAST.replace(b"6rr", b"7rr")])
def test_a_broker_that_does_not_know_the_password_is_not_believed(last: bytes) -> None:
    messages = scram(PENCIL, NONCE)
    next(messages)
    messages.send(FIRST)
    with pytest.raises(LoginError, match="does not know the password"):
        messages.send(last)
