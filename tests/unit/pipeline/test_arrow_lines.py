"""Arrow reads only lines that are plainly valid, and reads them as they are; the others are left to Spark."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tests.unit.pipeline.histories import chaos
from zkrebalancer.observe.reading import find_flaw
from zkrebalancer.pipeline.arrow_lines import FEW_LINES, UNCLEAR, read
from zkrebalancer.pipeline.schema import BULK, COMMON, NEEDED, OTHER, REST

LINE = b'{"mono_us":1,"kind":"produced","topic":"t","partition":0,"first_offset":2,"last_offset":3}'
DEEP = b'{"mono_us":1,"kind":"new","more":' + b"[" * 998 + b"]" * 998 + b"}"
UNCLEAR_LINES = (
    b"",
    b"[]",
    LINE + b"\r",
    LINE + LINE,
    LINE[:-1],
    LINE[:20],
    b'{"mono_us":1,"kind":"new","kind":"old"}',
    b'{"mono_us":1.0,"kind":"new"}',
    b'{"mono_us":1e3,"kind":"new"}',
    b'{"mono_us":"1","kind":"new"}',
    b'{"mono_us":true,"kind":"new"}',
    b'{"mono_us":NaN,"kind":"new"}',
    b'{"mono_us":01,"kind":"new"}',
    b'{"mono_us":9007199254740993,"kind":"new"}',
    b'{"mono_us":9223372036854775808,"kind":"new"}',
    b'{"mono_us":null,"kind":"new"}',
    b'{"mono_us":1,"kind":7}',
    b'{"kind":"new"}',
    b'{"mono_us":1}',
    b"{'mono_us':1,'kind':'new'}",
    b'{"mono_us":1,"kind":"new","more":01}',
    b'{"mono_us":1,"kind":"\xff"}',
    b'{"mono_us":1,"kind":"\\ud800"}',
    b'{"mono_us":1,"kind":"a\x01b"}',
    b'{"mono_us":1,"kind":"new"}\x00',
    DEEP.replace(b"[]", b"[[]]"),
    LINE.replace(b'"partition":0', b'"partition":2147483648'),
    LINE.replace(b'"topic":"t",', b""),
    LINE.replace(b'"topic":"t"', b'"topic":1'),
    LINE.replace(b":3}", b":1}"),
    LINE.replace(b":2,", b":-1,"),
    LINE.replace(b":3}", b":9007199254740993}"),
    b'{"mono_us":1,"kind":"fetcher_started","group":"g","member":"m","topic":"t","partitions":[1],"positions":[]}',
    b'{"mono_us":1,"kind":"fetcher_started","group":"g","member":"m","topic":"t","partitions":[null],"positions":[1]}',
    b'{"mono_us":1,"kind":"fetcher_started","group":"g","member":"m","topic":"t","partitions":[1]}',
    b'{"mono_us":1,"kind":"leader_elected","epoch":"x"}',
)


def found_in(lines: bytes) -> dict[int, tuple[str, dict[str, Any]]]:
    """Return the kind and the row of each line, by its number."""
    return {row["row"]: (kind, row) for kind, rows in read(lines, 0) for row in rows.to_pylist()}


@pytest.mark.parametrize("line", UNCLEAR_LINES)
def test_a_line_that_may_be_invalid_is_left_to_spark(line: bytes) -> None:
    """Lines far from it are read."""
    lines = [LINE] * 500
    lines[400] = line
    found = found_in(b"\n".join(lines) + b"\n")
    assert sorted(found) == list(range(500))
    kind, row = found[400]
    assert (kind, row["text"]) == (UNCLEAR, line)
    assert sum(kind == UNCLEAR for kind, _row in found.values()) <= FEW_LINES


def test_two_objects_in_one_line_and_none_in_the_next_are_not_two_lines() -> None:
    """Only compare the numbers of objects and lines."""
    assert {kind for kind, _row in found_in(LINE + LINE + b"\n\n" + LINE).values()} == {UNCLEAR}


@pytest.mark.parametrize("line", [DEEP, b'{ "mono_us":1 , "k\\u0069nd":"\\ud83d\\ude00", "x":"\xc3\xa9" }'])
def test_unusual_lines_are_valid_nevertheless(line: bytes) -> None:
    ((kind, row),) = found_in(line).values()
    assert (kind, row["mono_us"], row["text"]) == (OTHER, 1, line.decode())


@pytest.mark.parametrize("seed", range(20))
def test_clear_lines_are_those_that_the_checker_accepts_and_have_its_values(seed: int) -> None:
    """Nothing is clear that the checker rejects; without a mistake, everything is."""
    chance = random.Random(seed)
    events = [dict(event) for event in chaos(seed).events]
    broken = set(chance.sample(range(len(events)), len(events) // 50))
    for number in broken:
        _break(events[number], chance)
    found = found_in("".join(json.dumps(event) + "\n" for event in events).encode())
    assert sorted(found) == list(range(len(events)))
    for number, event in enumerate(events):
        kind, row = found[number]
        if kind == UNCLEAR:
            continue
        assert find_flaw(event) is None
        assert kind == (event["kind"] if event["kind"] in NEEDED else OTHER)
        rest = row["rest"] or {}
        assert [row[name] for name in COMMON.names if name != "kind"] == [
            event.get(name) for name in COMMON.names if name != "kind"
        ]
        if kind not in BULK:
            assert [rest[name] for name in REST.names] == [event.get(name) for name in REST.names]
    if not broken:
        assert UNCLEAR not in {kind for kind, _row in found.values()}


def _break(event: dict[str, Any], chance: random.Random) -> None:
    key = chance.choice(sorted(event))
    if chance.random() < 0.5:
        del event[key]
    else:
        event[key] = chance.choice([None, "x", 1.5, [], [None], {}, -1, 2**53 + 1, 2**70, True])
