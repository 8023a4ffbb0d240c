from collections.abc import Callable
from typing import Any

class UnpackException(Exception): ...

def packb(o: object, *, default: Callable[[Any], object] | None = None, unicode_errors: str | None = None) -> bytes: ...
def unpackb(
    packed: bytes,
    *,
    raw: bool = False,
    strict_map_key: bool = True,
    ext_hook: Callable[[int, bytes], object] = ...,
    timestamp: int = 0,
) -> Any: ...
