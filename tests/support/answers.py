"""Answers of our programs to HTTP."""

from __future__ import annotations

import urllib.error
import urllib.request

from tests.support.deadlines import WITHIN_S


def get(address: str, path: str) -> tuple[int, str]:
    """Return the status and the text that HOST:PORT answers; 0 while nothing listens there."""
    try:
        with urllib.request.urlopen(f"http://{address}/{path}", timeout=WITHIN_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""
