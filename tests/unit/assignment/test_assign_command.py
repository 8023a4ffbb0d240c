"""`zkrebalancer assign`: its output, and its errors, which are one line each."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.unit.assignment.conftest import Run
from zkrebalancer.assignment.document import MAX_PARTITIONS
from zkrebalancer.cli.assign import MAX_INPUT_BYTES

INPUT: dict[str, Any] = {
    "topics": {"orders": 3, "payments": 2, "__offsets": 1, "idle": 1},
    "members": {
        "c1": {"topics": ["orders"], "owned": {"orders": [0, 9]}, "generation": 9},
        "c2": {"pattern": "^pay", "pattern_type": "white_list", "instance_id": "p", "rack": "r1", "capacity": 2.0},
        "c3": {"topics": []},
    },
    "surprise": [1, {}],
    "lag": {"orders": [10, 0, 500]},
    "racks": {"orders": [["r1"], ["r2"], ["r1"]]},
    "options": {},
}


def test_json_document(run: Run) -> None:
    result = run("--json", content=json.dumps(INPUT))
    assert (result.exit_code, result.stderr) == (0, "")
    output = json.loads(result.stdout)
    assert output.pop("elapsed_ms") >= 0
    assert output == {
        "strategy": "sticky",
        "assignment": {"c1": {"orders": [0, 1, 2]}, "c2": {"payments": [0, 1]}, "c3": {}},
        "kept": 1,
        "moved": 0,
        "unassigned": {
            "__offsets": [{"partition": 0, "reason": "no subscriber"}],
            "idle": [{"partition": 0, "reason": "no subscriber"}],
        },
    }


def test_the_example_of_the_documentation(run: Run) -> None:
    page = (Path(__file__).parents[3] / "docs" / "ideas" / "assignment.md").read_text()
    given, answered = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    output = json.loads(run("--json", content=given).stdout)
    assert output | {"elapsed_ms": 0.4} == json.loads(answered)


def test_withheld_partitions_are_listed_as_unassigned(run: Run) -> None:
    members = {"c1": {"topics": ["t"], "owned": {"t": [0, 1]}}, "c2": {"topics": ["t"]}}
    content = json.dumps({"topics": {"t": 2}, "members": members})
    result = run("--json", strategy="cooperative_sticky", content=content)
    output = json.loads(result.stdout)
    assert output["unassigned"] == {"t": [{"partition": 1, "reason": "withheld until revoked"}]}
    assert (output["kept"], output["moved"]) == (1, 0)


def test_human_readable_table(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "input.json"
    path.write_text(json.dumps(INPUT))
    result = run(strategy="range", input_name=str(path))
    assert result.exit_code == 0
    rows = [line.split("│")[1:-1] for line in result.stdout.splitlines() if line.startswith("│")]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["c1", "orders", "0-2", "3"],
        ["c2", "payments", "0-1", "2"],
        ["c3", "-", "", "0"],
    ]
    bars = [line.split() for line in result.stdout.splitlines() if line.startswith("c")]
    assert [(name, count, len("".join(bar))) for name, count, *bar in bars] == [
        ("c1", "3", 40),
        ("c2", "2", 27),
        ("c3", "0", 0),
    ]
    assert "unassigned: idle 0 (no subscriber)" in result.stdout
    assert "kept 1, moved 0" in result.stdout


def test_hostile_names_are_printed_as_text(run: Run) -> None:
    content = json.dumps(
        {"topics": {"t\x1b[31m": 1, "[red]": 1}, "members": {"c\n": {"topics": ["t\x1b[31m", "[red]"]}}}
    )
    result = run(content=content)
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    assert r'"c\n"' in result.stdout
    assert "[red]" in result.stdout


@pytest.mark.parametrize(
    ("pattern_type", "expression", "expected"),
    [
        ("white_list", "^pay", {"payments"}),
        ("white_list", "o", {"orders"}),
        ("black_list", "^pay", {"orders"}),
        ("black_list", "x", {"orders", "payments"}),
        ("white_list", "offsets", set()),
    ],
)
def test_patterns_search_and_never_match_internal_topics(
    pattern_type: str, expression: str, expected: set[str], run: Run
) -> None:
    topics = {"orders": 1, "payments": 1, "__offsets": 1}
    members = {"c": {"pattern": expression, "pattern_type": pattern_type}}
    result = run("--json", content=json.dumps({"topics": topics, "members": members}))
    assert json.loads(result.stdout)["assignment"]["c"].keys() == expected


def test_a_pattern_without_a_type_is_a_white_list(run: Run) -> None:
    result = run("--json", content=json.dumps({"topics": {"a": 1, "b": 1}, "members": {"c": {"pattern": "a"}}}))
    assert json.loads(result.stdout)["assignment"] == {"c": {"a": [0]}}


def test_range_uses_threads(run: Run) -> None:
    members = {"c1": {"topics": ["t"], "threads": 3}, "c2": {"topics": ["t"]}}
    content = json.dumps({"topics": {"t": 8}, "members": members})
    result = run("--json", strategy="range", content=content)
    assert json.loads(result.stdout)["assignment"] == {"c1": {"t": [0, 1, 2, 3, 4, 5]}, "c2": {"t": [6, 7]}}


def test_partitions_of_several_threads_are_merged_and_sorted(run: Run) -> None:
    content = json.dumps({"topics": {"t": 4}, "members": {"c": {"topics": ["t"], "threads": 2}}})
    result = run("--json", strategy="round_robin", content=content)
    assert json.loads(result.stdout)["assignment"] == {"c": {"t": [0, 1, 2, 3]}}


MEMBER_ERRORS = [
    ({}, "members.c: must have either topics or pattern"),
    ({"topics": [], "pattern": "a"}, "members.c: must have either topics or pattern"),
    ({"topics": "t"}, 'members.c.topics: must be a list, not "t"'),
    ({"topics": ["t", 1]}, "members.c.topics[1]: must be a string, not 1"),
    ({"topics": ["t", "u", "t"]}, "members.c.topics[2]: t occurs twice in one list"),
    ({"pattern": 1}, "members.c.pattern: must be a string, not 1"),
    ({"pattern": "("}, "members.c.pattern: pattern '(' does not compile"),
    ({"pattern": r"(a)\1"}, "members.c.pattern: pattern"),
    ({"pattern": "a", "pattern_type": "regex"}, "members.c.pattern: pattern type 'regex' is not"),
    ({"pattern": "a", "pattern_type": 1}, "members.c.pattern_type: must be a string"),
    ({"topics": [], "threads": 0}, "members.c.threads: must be an integer from 1 to 1000, not 0"),
    ({"topics": [], "threads": 10**30}, "members.c.threads: must be an integer from 1 to 1000"),
    ({"topics": [], "threads": True}, "members.c.threads: must be an integer from 1 to 1000, not true"),
    ({"topics": [], "owned": []}, "members.c.owned: must be an object, not a list"),
    ({"topics": [], "owned": {"t": 1}}, "members.c.owned.t: must be a list, not 1"),
    ({"topics": [], "owned": {"t": [0, -1]}}, "members.c.owned.t[1]: must be an integer from 0 to"),
    ({"topics": [], "owned": {"t": [False]}}, "members.c.owned.t[0]: must be an integer from 0 to"),
    ({"topics": [], "owned": {"t": [1.5]}}, "members.c.owned.t[0]: must be an integer from 0 to"),
    ({"topics": [], "owned": {"t": [10**20]}}, "members.c.owned.t[0]: must be an integer from 0 to"),
    ({"topics": [], "generation": "9"}, "members.c.generation: must be an integer from -1 to"),
    ({"topics": [], "instance_id": 1}, "members.c.instance_id: must be a string"),
    ({"topics": [], "rack": []}, "members.c.rack: must be a string, not a list"),
    ({"topics": [], "capacity": -1}, "members.c.capacity: must be a number of at least 0, not -1"),
    ({"topics": [], "capacity": True}, "members.c.capacity: must be a number of at least 0, not true"),
    ({"topics": [], "capacity": 10**400}, "members.c.capacity: must be a number of at least 0"),
    ({"topics": [], "owned": {"gone": [0]}}, "members.c.owned.gone: the topic is not in `topics`"),
    ({"topics": [], "weight": 2}, "members.c.weight: is unknown; known are capacity, generation, "),
    ([], "members.c: must be an object, not a list"),
    (None, "members.c: must be an object, not null"),
]
DOCUMENT_ERRORS = [
    *(({"topics": {"t": 1}, "members": {"c": member}}, message) for member, message in MEMBER_ERRORS),
    ([], "input: must be an object, not a list"),
    ({"members": {}}, "topics: is missing"),
    ({"topics": {}}, "members: is missing"),
    ({"topics": [], "members": {}}, "topics: must be an object, not a list"),
    ({"topics": {}, "members": []}, "members: must be an object, not a list"),
    ({"topics": {"t": -1}, "members": {}}, "topics.t: must be an integer from 0 to 2147483647, not -1"),
    ({"topics": {"t": True}, "members": {}}, "topics.t: must be an integer from 0"),
    ({"topics": {"t": 2.0}, "members": {}}, "topics.t: must be an integer from 0"),
    ({"topics": {"t": 10**300}, "members": {}}, "topics.t: must be an integer from 0"),
    ({"topics": {"a": MAX_PARTITIONS, "b": 1}, "members": {}}, "topics: 1000001 partitions in all, at most 1000000"),
    ({"topics": {"a\nb": -1}, "members": {}}, r'topics."a\nb": must be an integer from 0'),
    (
        {"topics": {}, "members": {"c": {"topics": [str(n) for n in range(20_001)], "threads": 1000}}},
        "members: 20001000 consumer threads in all, at most 20000000 are allowed",
    ),
    ({"topics": {}, "members": {}, "lag": []}, "lag: must be an object, not a list"),
    ({"topics": {}, "members": {}, "lag": {"t": [-5]}}, "lag.t[0]: must be an integer from 0"),
    ({"topics": {}, "members": {}, "racks": {"t": ["r1"]}}, "racks.t[0]: must be a list"),
    ({"topics": {}, "members": {}, "racks": {"t": [[1]]}}, "racks.t[0][0]: must be a string, not 1"),
    ({"topics": {}, "members": {}, "options": None}, "options: must be an object, not null"),
    (
        {"topics": {}, "members": {}, "options": {"move_costs": 1}},
        "options.move_costs: is unknown; known are peak_cost",
    ),
]
TEXT_ERRORS = [
    ("", "input: not JSON"),
    ("{", "input: not JSON"),
    ("[" * 100_000, "input: not JSON"),
    (b"\xff\xfe\xff", "input: not JSON"),
    ('{"topics": {"t": NaN}, "members": {}}', "topics.t: must be an integer from 0 to 2147483647, not NaN"),
    (
        '{"topics": {}, "members": {"c": {"topics": [], "capacity": NaN}}}',
        "members.c.capacity: must be a number of at least 0",
    ),
    ('{"topics": {}, "members": {"c": {"topics": []}, "c": {"topics": []}}}', "members.c: occurs twice in one object"),
    ('{"topics": {}, "members": {}, "lag": {"t": [0, -Infinity]}}', "lag.t[1]: must be an integer from 0"),
    ('{"topics": {"t": ' + "9" * 5_000 + '}, "members": {}}', "input: not JSON"),
    ('{"topics": {"t": 1, "t": 2}, "members": {}}', "topics.t: occurs twice in one object"),
    ('{"topics": {}, "members": {}, "options": {"move_cost": NaN}}', "options.move_cost: must be a number from 0 to"),
    ('{"topics": {}, "members": {}, "options": {"pinned": {"t": [], "t": [0]}}}', "options.pinned.t: occurs twice"),
    (r'{"topics": {"\ud800": 1}, "members": {}}', "input: a string contains a lone surrogate"),
    (
        '{"topics": {}, "members": {"c": {"topics": [], "capacity": 1e999}}}',
        "members.c.capacity: must be a number of at least 0",
    ),
]


@pytest.mark.parametrize(
    ("content", "message"),
    [*((json.dumps(document), message) for document, message in DOCUMENT_ERRORS), *TEXT_ERRORS],
    ids=lambda value: str(value)[:60],
)
def test_an_input_error_is_one_line_with_the_path(content: str | bytes, message: str, run: Run) -> None:
    result = run("--json", content=content)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"Error: {message}")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["no/such/file", "."])
def test_an_unreadable_file_is_one_line(name: str, run: Run) -> None:
    result = run(input_name=name)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"Error: --input {name}: cannot be read (")
    assert result.stderr.count("\n") == 1


def test_a_huge_file_is_rejected_before_it_is_read_completely(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(1024**3)  # a sparse file
    result = run(input_name=str(path))
    assert result.exit_code == 2
    assert result.stderr == f"Error: --input {path}: more than {MAX_INPUT_BYTES} bytes\n"


def test_the_error_for_an_unknown_strategy_lists_the_known_ones(run: Run) -> None:
    result = run(strategy="fair", content=json.dumps(INPUT))
    assert result.exit_code == 2
    assert result.stderr == (
        "Error: strategy 'fair' is unknown; known are range, round_robin, sticky, cooperative_sticky, balanced\n"
    )
