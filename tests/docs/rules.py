"""What every page has to be: its links lead somewhere, its examples are valid. Each rule returns what is wrong."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath

import click

from consumer_agent.sidecar.cli import consumer_agent
from tests.docs.generated import walk
from zkrebalancer.cli.main import zkrebalancer

PROGRAMS = {"zkrebalancer": zkrebalancer, "consumer-agent": consumer_agent}
OURS = ("zkrebalancer", "consumer_agent")
LANGUAGES = frozenset({"", "sh", "python", "json", "toml", "ini", "yaml", "dockerfile", "mermaid"})
_FENCE = re.compile(r"^([ ]*)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_URL = re.compile(r"https?://[\w-]+(\.[\w-]+)+(:\d+)?(/[^\s<>]*)?")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_EXTRAS = re.compile(r"(?:zkrebalancer|\.)\[([\w, -]+)\]'")
_CALL = re.compile(r"^(?:\$ |ExecStart=\S*/)?((?:zkrebalancer|consumer-agent)(?: .*)?)$")


def broken_anchors(pages: Mapping[str, str]) -> list[str]:
    """Return links to a heading that their page does not have; `pages` is path -> text."""
    found = []
    for path, text in pages.items():
        for target in links(text):
            file, _, anchor = target.partition("#")
            page = _resolve(path, file) if file else path
            if anchor and "://" not in target and page in pages and anchor not in anchors(pages[page]):
                found.append(f"{path}: {target} names no heading")
    return found


def malformed_urls(path: str, text: str) -> list[str]:
    """Return external links that cannot be addresses; they are not opened."""
    return [f"{path}: {url}" for url in links(text) if "://" in url and not _URL.fullmatch(url)]


def links(text: str) -> list[str]:
    """Return the targets of all links outside of code blocks."""
    return _LINK.findall(_FENCE.sub("", text))


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as mkdocs makes them; a repeated one gets a number."""
    found: set[str] = set()
    for heading in _HEADING.findall(_FENCE.sub("", text)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        base = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())
        slug, number = base, 0
        while slug in found:
            number += 1
            slug = f"{base}_{number}"
        found.add(slug)
    return found


def _resolve(path: str, file: str) -> str:
    parts: list[str] = []
    for part in (PurePosixPath(path).parent / file).parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """Yield language and content of each code block, without the indentation of its fence."""
    for indentation, language, content in _FENCE.findall(text):
        yield language, re.sub(rf"(?m)^{indentation}", "", content)


def unknown_extras(path: str, text: str) -> list[str]:
    """Return extras in calls of `pip install` that this project does not have."""
    known = set(importlib.metadata.metadata("zkrebalancer").get_all("Provides-Extra", []))
    named = {name.strip() for names in _EXTRAS.findall(text) for name in names.split(",")}
    return [f"{path}: there is no extra {name}" for name in sorted(named - known)]


def broken_examples(path: str, text: str) -> list[str]:
    """Return the code blocks that do not parse, and commands with unknown names or options."""
    found = []
    for language, content in blocks(text):
        if language not in LANGUAGES:
            found.append(f"{path}: no check for ```{language}")
        try:
            _PARSERS.get(language, _nothing)(content)
        except (SyntaxError, ValueError) as error:
            found.append(f"{path}: {language}: {error}")
        if language in {"", "sh", "ini"}:
            found += [f"{path}: {fault}: {line}" for line in calls(content) if (fault := call_fault(line))]
    return found


def calls(content: str) -> list[str]:
    """Return the lines of a block that run one of our programs, each with its continuation lines."""
    joined = re.sub(r" \\\n\s*", " ", content)
    return [found[1] for line in joined.splitlines() if (found := _CALL.match(line.strip()))]


def call_fault(line: str) -> str | None:
    """Say what is wrong with a command line: an unknown subcommand, or an option that it does not have."""
    words = re.split(r"\s[#>|&;]", line + " ", maxsplit=1)[0].split()
    known = {context.command_path: command for command, context in _commands(words[0])}
    path = words[0]
    while len(words) > 1 and f"{path} {words[1]}" in known:
        path = f"{path} {words.pop(1)}"
    command = known[path]
    if isinstance(command, click.Group) and len(words) > 1 and not words[1].startswith(("-", "[")):
        return f"{path} has no command {words[1]}"
    options = {name for parameter in command.params for name in parameter.opts} | {"--help"}
    unknown = [
        word for word in words[1:] if re.fullmatch(r"--[\w-]+", word.strip("[]")) and word.strip("[]") not in options
    ]
    return f"{path} has no option {unknown[0]}" if unknown else None


def _commands(program: str) -> Iterator[tuple[click.Command, click.Context]]:
    yield from walk(PROGRAMS[program], click.Context(PROGRAMS[program], info_name=program))


def _nothing(_content: str) -> None:
    pass


def _python(content: str) -> None:
    """Compile a block, and import what it imports of this project."""
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in OURS:
            module = importlib.import_module(node.module or "")
            if missing := [name.name for name in node.names if not hasattr(module, name.name)]:
                raise ValueError(f"{node.module} has no {', '.join(missing)}")


def _json(content: str) -> None:
    json.loads(content)


def _toml(content: str) -> None:
    tomllib.loads(content)


_PARSERS: Mapping[str, Callable[[str], None]] = {"python": _python, "json": _json, "toml": _toml}
