"""Writes a sweep: one table as Parquet and CSV, and a page of heat maps."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path

import pandas as pd

from zkrebalancer.pipeline import page
from zkrebalancer.pipeline.sweep import model
from zkrebalancer.pipeline.sweep.model import Cost
from zkrebalancer.pipeline.sweep.picture import pictures

TABLE, CSV, PAGE = "sweep.parquet", "sweep.csv", "sweep.html"


def write(result: pd.DataFrame, directory: Path) -> None:
    """Write all files into `directory`, which exists."""
    result.to_parquet(directory / TABLE, index=False)
    result.to_csv(directory / CSV, index=False)
    parts = [page.prose(_rules())]
    rows = [
        [f"{row['strategy']}, {row['protocol']}", *(f"{row[field.name]:,.4g}" for field in fields(Cost))]
        for row in summary(result)
    ]
    parts += [page.heading("Medians over the whole grid"), page.table(["", *_names()], rows)]
    page.write_page(directory / PAGE, "Strategies and protocols over a grid", [*parts, *pictures(result)])


def summary(result: pd.DataFrame) -> list[dict[str, object]]:
    """Return the medians of each strategy and protocol over the whole grid."""
    medians = result.groupby(["strategy", "protocol"])[_names()].median().reset_index()
    return [{str(key): value for key, value in row.items()} for row in medians.to_dict("records")]


def _rules() -> str:
    """Return the model's own description with its constants replaced by their values."""
    description = inspect.getdoc(model) or ""
    return re.sub(r"\b[A-Z]+(?:_[A-Z]+)*_MS\b|\bCHANGES\b", lambda name: _value(name[0]), description)


def _value(name: str) -> str:
    value = getattr(model, name)
    return f"{value:,.0f} ms" if name.endswith("_MS") else str(value)


def _names() -> list[str]:
    return [field.name for field in fields(Cost)]
