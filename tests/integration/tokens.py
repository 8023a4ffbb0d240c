"""Unsigned tokens (JWT) for SASL/OAUTHBEARER, as a broker without a validator accepts them, and who gives them out."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from zkrebalancer.localcluster.ports import HOST

LIFETIME_S = 60.0


def new_token(user: str, lifetime_s: float) -> tuple[str, float]:
    """Return a token and the time of its end, as an `oauth_cb` does."""
    end_s = time.time() + lifetime_s
    claims = {"sub": user, "iat": time.time(), "exp": end_s}
    return f"{_part({'alg': 'none'})}.{_part(claims)}.", end_s


def _part(document: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(document).encode()).rstrip(b"=").decode()


@contextmanager
def identity_provider(user: str) -> Iterator[str]:
    """Give everybody this user's tokens; yield the address."""

    class Provider(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            token, _end_s = new_token(user, LIFETIME_S)
            answer = json.dumps({"access_token": token, "token_type": "bearer"}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer((HOST, 0), Provider) as provider, ThreadPoolExecutor(1) as executor:
        executor.submit(provider.serve_forever)
        try:
            yield f"http://{HOST}:{provider.server_port}/token"
        finally:
            provider.shutdown()
