"""No unused file and no broken link; the rules for them find an offender."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.style.file_rules import broken_links, unlinked_documents, unused_modules
from tests.style.sources import PRODUCT, ROOT, Source, python_sources, text_files
from zkrebalancer.cli.main import COMMANDS


def entry_points() -> Iterator[str]:
    """Yield `module:attribute` of the console scripts, and the modules of the commands of `zkrebalancer`."""
    for node in ast.walk(ast.parse((ROOT / "setup.py").read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " = " in node.value:
            yield node.value.split(" = ")[1]
    yield from (f"zkrebalancer.cli.{name.replace('-', '_')}" for name in COMMANDS)


def documents() -> dict[str, str]:
    texts = dict(text_files())
    return {path: text for path, text in texts.items() if path == "README.md" or path.startswith("docs/")}


def test_every_product_module_is_used_by_the_product() -> None:
    assert unused_modules(python_sources(*PRODUCT), entry_points()) == []


def test_every_test_module_is_used() -> None:
    makefile = (ROOT / "Makefile").read_text().split()
    assert unused_modules(python_sources("tests"), makefile) == []


def test_the_readme_leads_to_every_document() -> None:
    assert unlinked_documents(documents(), "README.md") == []


def test_every_link_has_a_target() -> None:
    assert broken_links(documents(), lambda path: (ROOT / path).exists()) == []


def test_an_unused_module_is_found() -> None:
    used = [Source("p/main.py", "import p.a\nstart('p.b')"), Source("p/a.py", ""), Source("p/b.py", "")]
    assert unused_modules(used, ["p.main:main"]) == []
    assert unused_modules([*used, Source("p/c.py", "'p.c'")], ["p.main:main"]) == ["p/c.py"]
    assert unused_modules(used, []) == ["p/main.py"]


def test_a_package_that_is_never_started_is_found() -> None:
    package = [Source("p/q/__main__.py", "")]
    assert unused_modules(package, ["python", "-m", "p.q"]) == []
    assert unused_modules(package, ["python"]) == ["p/q/__main__.py"]


def test_modules_that_pytest_collects_count_as_used() -> None:
    tests = [Source("t/test_a.py", ""), Source("t/conftest.py", ""), Source("t/__init__.py", ""), Source("t/b.py", "")]
    assert unused_modules(tests, []) == ["t/b.py"]


def test_an_unlinked_document_is_found() -> None:
    texts = {"README.md": "[a](docs/a.md)", "docs/a.md": "[b](b/c.md#part)", "docs/b/c.md": "[up](../../README.md)"}
    assert unlinked_documents(texts, "README.md") == []
    assert unlinked_documents({**texts, "docs/d.md": "[a](a.md)"}, "README.md") == ["docs/d.md"]


def test_a_broken_link_is_found() -> None:
    texts = {"docs/a.md": "[b](b.md) [c](../LICENSE) [d](https://example.org/d)"}
    assert broken_links(texts, {"docs/b.md", "LICENSE"}.__contains__) == []
    assert broken_links(texts, {"docs/b.md"}.__contains__) == ["docs/a.md: links to LICENSE"]
