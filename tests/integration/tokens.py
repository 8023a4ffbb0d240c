"""Unsigned tokens (JWT) for SASL/OAUTHBEARER, as a broker without a validator accepts them."""

from __future__ import annotations

import base64
import json
import time
from typing import Any


def new_token(user: str, lifetime_s: float) -> tuple[str, float]:
    """Return a token and the time of its end, as an `oauth_cb` does."""
    end_s = time.time() + lifetime_s
    claims = {"sub": user, "iat": time.time(), "exp": end_s}
    return f"{_part({'alg': 'none'})}.{_part(claims)}.", end_s


def _part(document: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(document).encode()).rstrip(b"=").decode()
