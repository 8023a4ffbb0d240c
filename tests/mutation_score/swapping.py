"""Puts a mutant into this process by exchanging the code of an imported function."""

from __future__ import annotations

import ast
import gc
import importlib
from collections.abc import Iterator
from types import CodeType, FunctionType

from tests.mutation_score.catalogue import ROOT, Mutant

Functions = dict[tuple[str, str, int], list[FunctionType]]  # file, qualified name, first line


class NoMutantError(Exception):
    """The change does not compile, has no effect on code that runs, or is in a function that was not imported."""


def imported_functions(folders: tuple[str, ...]) -> Functions:
    """Import these folders' modules; return their functions, also those within decorators and classes."""
    for file in (file for folder in folders for file in (ROOT / folder).rglob("*.py")):
        importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
    prefixes = tuple(f"{ROOT / folder}/" for folder in folders)
    found: Functions = {}
    gc.unfreeze()  # frozen objects are not listed
    for thing in gc.get_objects():
        if type(thing) is FunctionType and thing.__code__.co_filename.startswith(prefixes):
            code = thing.__code__
            found.setdefault((code.co_filename, code.co_qualname, code.co_firstlineno), []).append(thing)
    return found


def swap(mutant: Mutant, functions: Functions) -> None:
    """Exchange the code, or the default arguments, of the mutant's function.

    Raises:
        NoMutantError: nothing can be exchanged; the mutant does not count.

    """
    path = str(ROOT / mutant.path)
    try:
        compiled = compile(mutant.source, path, "exec")
    except (SyntaxError, ValueError) as error:
        raise NoMutantError(f"it does not compile: {error}") from error
    changed = False
    for code in _codes(compiled):
        for function in functions.get((path, code.co_qualname, code.co_firstlineno), ()):
            if function.__code__ != code and mutant.function == code.co_qualname:
                try:
                    function.__code__ = code
                except ValueError as error:  # another number of free variables
                    raise NoMutantError(str(error)) from error
                changed = True
            elif mutant.function == code.co_qualname:
                changed |= _swap_defaults(function, mutant.source, code.co_firstlineno)
    if not changed:
        raise NoMutantError("nothing that runs is changed")


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a module and of its classes and functions."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _swap_defaults(function: FunctionType, source: str, first_line: int) -> bool:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name == function.__name__:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first == first_line:
                return _set_defaults(function, node.args)
    return False


def _set_defaults(function: FunctionType, arguments: ast.arguments) -> bool:
    def value(node: ast.expr) -> object:
        return eval(compile(ast.Expression(node), "<default>", "eval"), function.__globals__)  # noqa: S307  # our source

    positional = tuple(value(node) for node in arguments.defaults)
    names = [argument.arg for argument in arguments.kwonlyargs]
    keywords = {name: value(node) for name, node in zip(names, arguments.kw_defaults, strict=True) if node is not None}
    changed = repr((positional, keywords)) != repr((function.__defaults__ or (), function.__kwdefaults__ or {}))
    if changed:
        function.__defaults__, function.__kwdefaults__ = positional, keywords
    return changed
