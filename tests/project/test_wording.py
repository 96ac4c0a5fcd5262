"""Tests name a behaviour in few words, and pin no sentence of a program's output."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
MAX_NAME = 59
MAX_WORDS = 6
WORD = re.compile(r"(?<![\w./:=-])[A-Za-z][a-z]+(?![\w/:=-]|\.\w)")
TEXT_CALLS = {"shows", "show_each", "pattern", "Saying", "startswith", "endswith", "count"}
TEXT_CALLS |= {"search", "match", "fullmatch", "findall"}


def named_tests(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node


def texts(node: ast.AST) -> Iterator[str]:
    """Yield the texts that an expression compares, but not what it passes to programs."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            yield node.value
    elif isinstance(node, ast.JoinedStr):
        parts = (p.value if isinstance(p, ast.Constant) else "{}" for p in node.values)
        yield "".join(str(part) for part in parts)
    elif isinstance(node, ast.Call):
        name = (
            node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        )
        yield from texts(node.func)
        if name in TEXT_CALLS:
            for argument in node.args:
                yield from texts(argument)
    else:
        for child in ast.iter_child_nodes(node):
            yield from texts(child)


def compared_texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            yield from ((node.lineno, text) for text in texts(node.test))
        elif isinstance(node, ast.keyword) and node.arg == "match":
            yield from ((node.value.lineno, text) for text in texts(node.value))


def is_sentence(text: str) -> bool:
    return any(len(WORD.findall(part)) > MAX_WORDS for part in text.split(" … "))


@pytest.fixture(scope="module")
def modules() -> dict[str, ast.Module]:
    paths = sorted(TESTS.rglob("*.py"))
    return {str(path.relative_to(TESTS)): ast.parse(path.read_text("utf-8")) for path in paths}


def test_no_name_of_a_test_is_longer_than_59_characters(modules):
    names = {path: [node.name for node in named_tests(tree)] for path, tree in modules.items()}
    long = [(path, name) for path, found in names.items() for name in found if len(name) > MAX_NAME]
    assert long == []


def test_no_assertion_pins_a_sentence(modules):
    sentences = [
        (f"{path}:{line}", text)
        for path, tree in modules.items()
        for line, text in compared_texts(tree)
        if is_sentence(text)
    ]
    assert sentences == []
