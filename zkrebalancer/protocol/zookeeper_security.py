"""How a client proves to ZooKeeper who it is, and how it knows the server: settings, the same for every command. Pure.

Their names are those of the fields with `zookeeper_` in front: the flag `--zookeeper-tls-ca`, the variable
ZKREBALANCER_ZOOKEEPER_TLS_CA, and `zookeeper_tls_ca` in files and in Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from zkrebalancer.protocol.errors import ConfigurationError

PREFIX = "zookeeper_"
VARIABLES = "ZKREBALANCER_ZOOKEEPER_"
SASL = "sasl"  # DIGEST-MD5
DIGEST = "digest"
_WORDS = {"true": True, "false": False}
FLAGS = (  # field, form of its value (None: a switch), help; no flag for a secret, because other users read arguments
    ("tls", None, "Use TLS to ZooKeeper; implied by the other settings of TLS."),
    ("tls_ca", "FILE", "Authorities that sign the servers' certificates. Default: the system's."),
    ("tls_certificate", "FILE", "The client's certificate."),
    ("tls_key", "FILE", "Key of the client's certificate. Default: the certificate's file."),
    ("tls_key_password_file", "FILE", "File with the password of the key."),
    ("auth", "sasl|digest", "How the user logs in. Default: sasl (DIGEST-MD5)."),
    ("user", "NAME", "The user to log in to ZooKeeper as."),
    ("password_file", "FILE", "File with the user's password."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperSecurity:
    """TLS and the login of a client; with the defaults, the connection is plain and anonymous.

    Raises:
        ConfigurationError: settings contradict each other; the text names them.

    """

    tls: bool = False
    """Use TLS. Implied by the other settings of TLS."""
    tls_ca: str | None = None
    """File with the certificates of the authorities that sign the servers' certificates. Default: the system's."""
    tls_certificate: str | None = None
    """File with the client's certificate."""
    tls_key: str | None = None
    """File with the key of the client's certificate. Default: the certificate's file."""
    tls_key_password_file: str | None = None
    """File with the password of the key."""
    auth: str = SASL
    """How the user logs in: `sasl` (DIGEST-MD5) or `digest`."""
    user: str | None = None
    """The user to log in as."""
    password_file: str | None = None
    """File with the user's password."""
    password: str | None = field(default=None, repr=False)
    """The user's password, from the environment."""

    def __post_init__(self) -> None:
        """Check how the settings go together."""
        faults = []
        if self.auth not in {SASL, DIGEST}:
            faults.append(f"zookeeper_auth must be {SASL} or {DIGEST}, not {self.auth!r:.80}")
        if (self.tls_key or self.tls_key_password_file) and not self.tls_certificate:
            faults.append("zookeeper_tls_key needs zookeeper_tls_certificate")
        if self.password is not None and self.password_file is not None:
            faults.append("zookeeper_password and zookeeper_password_file exclude each other")
        has_password = self.password is not None or self.password_file is not None
        if self.user is not None and not has_password:
            faults.append("zookeeper_user needs zookeeper_password_file, or a password in the environment")
        if self.user is None and has_password:
            faults.append("a password needs zookeeper_user")
        if faults:
            raise ConfigurationError("; ".join(faults))

    @property
    def uses_tls(self) -> bool:
        """Whether connections use TLS."""
        return self.tls or self.tls_ca is not None or self.tls_certificate is not None

    @property
    def is_plain(self) -> bool:
        """Whether connections are plain and anonymous."""
        return not self.uses_tls and self.user is None


NAMES = tuple(entry.name for entry in fields(ZooKeeperSecurity))
PLAIN = ZooKeeperSecurity()


def from_variables(environment: Mapping[str, str]) -> ZooKeeperSecurity:
    """Return the settings of environment variables such as ZKREBALANCER_ZOOKEEPER_USER; raises ConfigurationError."""
    given = {name: environment.get(VARIABLES + name.upper()) for name in NAMES}
    texts = {name: text for name, text in given.items() if text}
    tls = texts.pop("tls", "false").lower()
    if tls not in _WORDS:
        raise ConfigurationError(f"{VARIABLES}TLS must be true or false, not {tls!r:.80}")
    return ZooKeeperSecurity(tls=_WORDS[tls], **texts)
