"""The commands that README and docs show, and which of their targets, sub-commands and options do not exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

import click

from tests.docs.rules import PROGRAMS, call_fault
from tests.style.sources import ROOT

CODE = re.compile(r"^```.*?\n(?P<block>.*?)^```|(?<!`)`(?P<span>[^`]+)`(?!`)", re.MULTILINE | re.DOTALL)
BEGIN = re.compile(
    r"^(?:\$ )?(?:[A-Z_]+=\S+ )*(?:\S*/)?"
    r"(zkrebalancer|consumer-agent|make|python -m tests[\w.]*|python deploy/\w+\.py)(?= |$)"
)
SHARED = {"--json": "json_option", "--events": "events_option"}  # options that a module takes from others
ENDS = frozenset({"|", "&&", "||", ";", ">", "<", "&"})
DEFINED = re.compile(r"^([\w-]+):", re.MULTILINE)
RECIPE = re.compile(r"^([\w-]+):.*\n((?:\t.*\n)*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Documented:
    """A command as it is written somewhere: its program (`make`, `tests.model`, `zkrebalancer`, …) and its words."""

    place: str
    program: str
    words: tuple[str, ...]

    def name(self) -> str:
        """Return the program with the target or the sub-commands that are called."""
        if self.program == "make":
            return " ".join(["make", *self.targets()])
        names = [self.program]
        found: click.Command | None = PROGRAMS.get(self.program)
        for word in self.words:
            found = found.get_command(click.Context(found), word) if isinstance(found, click.Group) else None
            if found is None:
                break
            names.append(word)
        return " ".join(names)

    def targets(self) -> list[str]:
        """Return the targets that `make` is asked for."""
        return [word for word in self.words if "=" not in word and not word.startswith("-")]

    def options(self) -> list[str]:
        """Return the long options, without the marks of optional and repeated ones."""
        return [word.strip("[]…").partition("=")[0] for word in self.words if re.match(r"\[*--\w", word)]

    def flaws(self) -> list[str]:
        """Return what it names that is not there."""
        if self.program == "make":
            return self._flaws_of_make()
        if self.program in PROGRAMS:
            fault = call_fault(" ".join([self.program, *self.words]))
            return [] if fault is None else [fault]
        return self._flaws_of_module()

    def _flaws_of_make(self) -> list[str]:
        makefile = (ROOT / "Makefile").read_text()
        variables = [word.partition("=")[0] for word in self.words if "=" in word]
        known = {
            *re.findall(r"^(\w+) \?=", makefile, re.MULTILINE),
            *re.findall(r"^ifdef (\w+)", makefile, re.MULTILINE),
        }
        wrong = [target for target in self.targets() if target not in DEFINED.findall(makefile)]
        return [f"make has no {name}" for name in [*wrong, *(name for name in variables if name not in known)]]

    def _flaws_of_module(self) -> list[str]:
        path = ROOT / self.program.removesuffix(".py").replace(".", "/")
        file = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
        if not file.exists():
            return [f"there is no module {self.program}"]
        text = file.read_text()
        known = {option for option in self.options() if f'"{option}"' in text or SHARED.get(option, option) in text}
        return [f"{self.program} has no option {option}" for option in self.options() if option not in known]


def parse(line: str, place: str) -> Documented | None:
    """Return the command that a line of code begins with, if it is one of this project's."""
    begins = BEGIN.match(line)
    if begins is None:
        return None
    program = begins[1].removeprefix("python ").removeprefix("-m ")
    rest = re.sub(r"(^|\s)#.*", "", line[begins.end() :])
    try:
        words = shlex.split(rest)
    except ValueError:  # an apostrophe in a line that is output
        words = rest.split()
    until = next((at for at, word in enumerate(words) if word in ENDS), len(words))
    return Documented(place, program, tuple(words[:until]))


def in_text(text: str, place: str) -> Iterator[Documented]:
    """Yield the commands in the code of a Markdown text."""
    for code in CODE.finditer(text):
        if code["block"] is not None:
            lines = code["block"].replace("\\\n", " ").splitlines()
        else:
            lines = [" ".join(code["span"].split())]
        for line in lines:
            found = parse(line.strip(), place)
            if found is not None:
                yield found


def in_documents() -> list[Documented]:
    """Return every command that README and docs show."""
    files = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [found for file in files for found in in_text(file.read_text(), file.relative_to(ROOT).as_posix())]


def in_makefile() -> dict[str, list[Documented]]:
    """Return which of this project's commands each target runs."""
    recipes = RECIPE.findall((ROOT / "Makefile").read_text())
    found: dict[str, list[Documented]] = {}
    for target, recipe in recipes:
        lines = [line.strip().lstrip("@").replace("$(BIN)/", "") for line in recipe.splitlines()]
        parsed = [command for line in lines if (command := parse(line, f"Makefile, {target}")) is not None]
        found.setdefault(target, []).extend(parsed)
    return found
