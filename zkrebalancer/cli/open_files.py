"""The limit of open files of this process: a shell's is often 1,024."""

from __future__ import annotations

import contextlib
import resource


def allow_open_files(most: int) -> None:
    """Raise the limit to `most`, as far as the system lets this process."""
    with contextlib.suppress(OSError, ValueError):  # forbidden, as in a unit of systemd (EPERM)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
