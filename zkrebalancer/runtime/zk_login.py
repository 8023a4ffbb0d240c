"""Opens TLS connections to ZooKeeper and reads the secrets of a login, without blocking gevent's hub."""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import secrets
import ssl
import stat
from functools import lru_cache
from pathlib import Path

import gevent
import gevent.socket
import gevent.ssl

from zkrebalancer.protocol.errors import ConfigurationError
from zkrebalancer.protocol.zookeeper_security import DIGEST, SASL, ZooKeeperSecurity

MAX_CONTEXTS = 16
MAX_SECRET_BYTES = 10_000
OWN_USER = "member"  # of the random login that only this client knows
_from_pipes: dict[str, str] = {}  # name -> secret: a pipe, such as `<(pass show zookeeper)`, has it only once


class Login:
    """The login of one client; files are read again at each connection, so that their contents may change."""

    def __init__(self, security: ZooKeeperSecurity) -> None:
        """Draw the random credential that only this client knows; raises ConfigurationError for unreadable files."""
        self.security = security
        self.own = f"{OWN_USER}:{secrets.token_hex(20)}"
        if security.uses_tls:
            self.tls_context()
        self.sasl_options: dict[str, str] | None = None
        if security.user is not None and security.auth == SASL:
            self.sasl_options = {"mechanism": "DIGEST-MD5", "username": security.user}
        self.refresh()

    @property
    def credentials(self) -> list[tuple[str, str]]:
        """Return what kazoo sends after it has connected, scheme and secret: the own one, and the user's.

        They are sent before anything else: kazoo takes the answer to a later one for that to an earlier request.
        """
        security, found = self.security, [(DIGEST, self.own)]
        if security.user is not None and security.auth == DIGEST:
            found.append((DIGEST, f"{security.user}:{self._password()}"))
        return found

    @property
    def own_identity(self) -> str:
        """Return how access control lists name the random credential."""
        return digest_identity(self.own)

    @property
    def identity(self) -> str | None:
        """Return how access control lists name the user, None if there is none."""
        security = self.security
        if security.user is None:
            return None
        if security.auth == SASL:
            return f"{SASL}:{security.user}"
        return f"{DIGEST}:{digest_identity(f'{security.user}:{self._password()}')}"

    def refresh(self) -> None:
        """Read the password again, for the next connection."""
        if self.sasl_options is not None:
            self.sasl_options["password"] = self._password()

    def tls_context(self) -> ssl.SSLContext:
        """Return the context for TLS, made anew only if its files have changed; raises ConfigurationError."""
        security = self.security
        names = [security.tls_ca, security.tls_certificate, security.tls_key, security.tls_key_password_file]
        try:
            return _tls_context(*names, tuple(Path(name).stat().st_mtime_ns for name in names if name))
        except ssl.SSLError as error:
            raise ConfigurationError(
                f"the certificates for ZooKeeper cannot be used: {error.reason or error}"
            ) from None
        except OSError as error:
            name = error.filename or security.tls_ca or security.tls_certificate
            raise ConfigurationError(f"{name}: cannot be read: {error.strerror}") from None

    def connect(
        self, address: tuple[str, int], hostname: str, tcp_s: float, handshake_s: float
    ) -> gevent.ssl.SSLSocket:
        """Connect with TLS and check that the server's certificate is that of `hostname`; raises OSError.

        `handshake_s` is for all, `tcp_s` until the connection is accepted.
        """
        with gevent.Timeout(handshake_s, TimeoutError(errno.ETIMEDOUT, "no TLS handshake in time")):
            connection = gevent.socket.create_connection(address, tcp_s)
            try:
                connection.settimeout(None)
                connection.setsockopt(gevent.socket.IPPROTO_TCP, gevent.socket.TCP_NODELAY, 1)
                return self.tls_context().wrap_socket(connection, server_hostname=hostname)
            except BaseException:
                connection.close()
                raise

    def _password(self) -> str:
        security = self.security
        return security.password if security.password is not None else read_secret(str(security.password_file))


def digest_identity(credential: str) -> str:
    """Return ZooKeeper's name of "USER:PASSWORD": the user, and a hash of both."""
    user = credential.partition(":")[0]
    hashed = hashlib.sha1(credential.encode(), usedforsecurity=False).digest()  # the algorithm is ZooKeeper's
    return f"{user}:{base64.b64encode(hashed).decode()}"


def read_secret(name: str) -> str:
    """Return a file's text without the line break at its end; raises ConfigurationError, without the text."""
    if name in _from_pipes:
        return _from_pipes[name]
    try:
        with Path(name).open("rb") as file:
            content = file.read(MAX_SECRET_BYTES + 1)
            is_pipe = stat.S_ISFIFO(os.fstat(file.fileno()).st_mode)
        text = content.decode().rstrip("\r\n")
    except OSError as error:
        raise ConfigurationError(f"{name}: cannot be read: {error.strerror}") from None
    except ValueError:  # also for a name with NUL
        raise ConfigurationError(f"{name}: is not UTF-8 text") from None
    if len(content) > MAX_SECRET_BYTES:
        raise ConfigurationError(f"{name}: is too large for a secret: more than {MAX_SECRET_BYTES:,} bytes")
    if not text:
        raise ConfigurationError(f"{name}: is empty")
    if is_pipe:
        _from_pipes[name] = text
    return text


@lru_cache(MAX_CONTEXTS)
def _tls_context(
    ca: str | None, certificate: str | None, key: str | None, key_password_file: str | None, _changed: tuple[int, ...]
) -> ssl.SSLContext:
    """Make a context; loading certificates costs more than the handshake. `_changed`: when the files changed last."""
    context: ssl.SSLContext = gevent.ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks certificates and host names
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca is None:
        context.load_default_certs()
    else:
        context.load_verify_locations(ca)
    if certificate is not None:
        # Without a password, an empty one, or OpenSSL would ask for it at the terminal.
        password = read_secret(key_password_file) if key_password_file else ""
        context.load_cert_chain(certificate, key, password)
    return context
