"""`zkrebalancer restore`, beside its counterpart."""

from __future__ import annotations

from zkrebalancer.cli.backup import restore

__all__ = ["restore"]
