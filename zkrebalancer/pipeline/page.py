"""One self-contained HTML page: text, tables, and pictures as inline SVG, for light and dark mode."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

# Okabe and Ito's colour-blind safe palette, without the colours that vanish on white or black.
# The last two are Tol's.
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c8c8c", "#999933", "#aa4499")
INK = "#012345"  # replaced by the page's text colour
WIDTH_IN = 11.2  # of a picture, at 96 pixels per inch
STYLE: Any = {  # matplotlib's type lists every valid key
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "svg.fonttype": "none",  # keep text as text: searchable, readable aloud
    "svg.hashsalt": "zkrebalancer",  # equal pictures give equal bytes
}
GOOD, BAD = "good", "bad"
_CSS = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1240px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; } h2 { font-size: 1.3rem; margin-top: 2.5rem; border-bottom: 1px solid #8888; }
h3 { font-size: 1.05rem; margin-bottom: .3rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .8rem 0; font-size: 13.5px; }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid #8884; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } td:first-child, th { white-space: normal; }
th { border-bottom: 1px solid #888; }
figure { margin: 1rem 0; } figcaption { font-size: 13.5px; opacity: .85; }
td { vertical-align: top; } td small { display: block; opacity: .85; white-space: normal; }
td.good { background: #0a81; } td.bad { background: #d642; font-weight: 600; }
svg { width: 100%; height: auto; } .wide { overflow-x: auto; }
"""


def picture(figure: Figure, caption: str) -> str:
    """Return a figure as HTML with its caption, which is also its text for screen readers."""
    buffer = io.StringIO()
    with mpl.rc_context(STYLE):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{escape(caption)}" ', 1)
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"


@dataclass(frozen=True, slots=True)
class Cell:
    """A table cell: a value, notes in small print below it, and a `tone`: GOOD, BAD or empty."""

    text: str
    notes: Sequence[str] = ()
    tone: str = ""

    def __str__(self) -> str:
        """Return it as HTML."""
        notes = "".join(f"<small>{escape(note)}</small>" for note in self.notes)
        tone = f' class="{self.tone}"' if self.tone else ""
        return f"<td{tone}>{escape(self.text)}{notes}</td>"


def table(headings: Sequence[str], rows: Iterable[Sequence[str | Cell]]) -> str:
    """Return a table; the first column holds the row's name."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    cells = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
    body = "".join("<tr>" + "".join(map(str, row)) + "</tr>" for row in cells)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def heading(text: str, level: int = 2) -> str:
    """Return a heading."""
    return f"<h{level}>{escape(text)}</h{level}>"


def items(texts: Iterable[str]) -> str:
    """Return a list."""
    return "<ul>" + "".join(f"<li>{escape(text, quote=False)}</li>" for text in texts) + "</ul>"


def prose(text: str) -> str:
    """Return text in docstring style as HTML: paragraphs, lists of `- `, `code`, *emphasis*."""
    blocks = []
    for block in text.strip().split("\n\n"):
        marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(block, quote=False))
        marked = re.sub(r"\*(\S[^*]*)\*", r"<em>\1</em>", marked)
        if marked.startswith("- "):
            items = "".join(f"<li>{item}</li>" for item in marked.removeprefix("- ").split("\n- "))
            blocks.append(f"<ul>{items}</ul>")
        else:
            blocks.append(f"<p>{marked}</p>")
    return "".join(blocks)


def write_page(path: Path, title: str, parts: Iterable[str]) -> None:
    """Write a page."""
    body = "\n".join(parts)
    path.write_text(
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_CSS}</style></head><body>\n<h1>{escape(title)}</h1>\n{body}\n</body></html>\n",
        encoding="utf-8",
    )
