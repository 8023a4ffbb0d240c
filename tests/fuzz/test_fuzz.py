"""Every parser reads any bytes, or refuses them by its named error; `python -m tests.fuzz` looks longer."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.fuzz import targets
from tests.fuzz.targets import TARGETS

FOUND: dict[str, list[bytes]] = {  # by earlier runs, or by reading
    "backups": [b"[" * 100_000, targets.backup_head() + b'{"path":"/consumers/a","content":"\xc3\xa9"}\n'],
    "events": [
        b'{"mono_us":1,"kind":"other","first_offset":1}\n',
        b'{"mono_us":1,"kind":"other","partitions":1,"positions":2}\n',
        b"[" * 100_000 + b"\n",
        b'{"mono_us":1,"kind":"produced","topic":"' + b"t" * 9_000 + b'","partition":""}\n',
    ],
    "http": [b"GET\xa0/liveness", b"GET\x1e /liveness \r", b"GET /liveness HTTP/1\r\n\r\n"],
    "nodes": [b'\x12{"version":1,"coordinators":["l:c"],"groups":{"' + b"\x7f" * 120 + b'":["l:c"]}}'],
    "scram": [b"r=nonce1,s=c2FsdA==,i=1\nv=\xc3\xa9"],
    "sidecar-msgpack": [
        b"\0\0\0\x0c\x81\xa7revoked\x81\xa3t\n\x01\1",
        b"\0\0\0\x0d\x81\xa7revoked\x81\xc4\1t\x90",
        b"\0\0\0\x0d\x81\xa7revoked\x81\xc4\1t\x01",
    ],
    "toml": [b"a = " + b"[" * 50_000, b"a = " + b"{a=" * 50_000],
}


@pytest.mark.parametrize("name", TARGETS)
@given(content=st.binary(max_size=300))
@example(content=b"")
def test_any_bytes(name: str, content: bytes) -> None:
    TARGETS[name].read(content)


@pytest.mark.parametrize("name", TARGETS)
@given(data=st.data())
def test_a_changed_seed(name: str, data: st.DataObject) -> None:
    """Some bytes of a legal input are replaced, removed, or repeated."""
    content = data.draw(st.sampled_from(TARGETS[name].seeds))
    TARGETS[name].read(content)
    for _ in range(data.draw(st.integers(1, 3))):
        begin = data.draw(st.integers(0, len(content)))
        end = data.draw(st.integers(begin, min(len(content), begin + 8)))
        put = data.draw(st.binary(max_size=8) | st.just(content[begin:end] * 2))
        content = content[:begin] + put + content[end:]
    TARGETS[name].read(content)


@pytest.mark.parametrize(("name", "content"), [(name, one) for name, several in FOUND.items() for one in several])
def test_what_was_found_once(name: str, content: bytes) -> None:
    TARGETS[name].read(content)


def test_the_command_line_fuzzes_or_says_what_is_missing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--seconds", "1", "--target", "patterns", "--keep", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if importlib.util.find_spec("atheris") is None:
        assert (done.returncode, done.stderr) == (2, "atheris is missing: pip install atheris\n")
    else:
        assert done.returncode == 0, done.stderr
        assert done.stdout.endswith("no findings\n")
