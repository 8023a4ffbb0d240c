"""Writes a fleet's tables as CSV, and one page with a row for each question."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from zkrebalancer.pipeline import page
from zkrebalancer.pipeline.fleet import history, replay
from zkrebalancer.pipeline.fleet.questions import Question, Tables, shown

PAGE = "fleet.html"


def write(tables: Tables, asked: Sequence[Question], directory: Path) -> dict[str, Path]:
    """Write all files into `directory`, which exists; return their paths by name."""
    files = {}
    for field in fields(tables):
        path = directory / f"{field.name}.csv"
        getattr(tables, field.name).to_csv(path, index=False)
        files[field.name] = path
    parts = [page.table(["question", "answer"], [[one.question, page.Cell(one.answer)] for one in asked])]
    for one in asked:
        parts += [page.heading(one.question, 3), page.prose(one.answer), _figures(one)]
    parts += [page.heading("How this was computed"), page.prose(inspect.getdoc(history) or "")]
    parts.append(page.prose(inspect.getdoc(replay) or ""))
    page.write_page(directory / PAGE, "Rebalances of a fleet", parts)
    return files | {"page": directory / PAGE}


def _figures(question: Question) -> str:
    if not question.figures:
        return ""
    return page.table(list(question.figures[0]), [[shown(value) for value in row.values()] for row in question.figures])
