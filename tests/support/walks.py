"""How far a reader walks: the files that a value passes through, from a function on, call by call.

A call is followed if it names a function of ours and is given the value, or what was made of it. Python is read by its
syntax tree, C by its calls in the order of the text.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("kvtrace", "kvreplay", "kvdistill")


@dataclass
class Walk:
    """The files that were entered from another one, one after the other; a function is gone through once."""

    stays: list[Path] = field(default_factory=list)
    passed: set[tuple[Path, str]] = field(default_factory=set)

    @property
    def files(self) -> int:
        return len(set(self.stays))

    @property
    def returns(self) -> int:
        """How often the value comes back to a file that it has been in."""
        return len(self.stays) - self.files

    def enter(self, path: Path, name: str, caller: Path | None) -> bool:
        """Return whether the function `name` is new, called from the file `caller`."""
        if (path, name) in self.passed:
            return False
        self.passed.add((path, name))
        if path != caller:
            self.stays.append(path)
        return True


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def functions(path: Path) -> dict[str, ast.FunctionDef]:
    """Return the functions of a file by name, methods as Class.name."""
    found = {node.name: node for node in tree(path).body if isinstance(node, ast.FunctionDef)}
    for owner in (node for node in tree(path).body if isinstance(node, ast.ClassDef)):
        found |= {f"{owner.name}.{node.name}": node for node in owner.body if isinstance(node, ast.FunctionDef)}
    return found


def file_of(module: str) -> Path | None:
    path = ROOT / module.replace(".", "/")
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None)


@cache
def imported(path: Path) -> dict[str, tuple[str, str | None]]:
    """Return what each imported name is: a module, and the name in it, None for the module itself."""
    found: dict[str, tuple[str, str | None]] = {}
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in PROGRAMS:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found[alias.asname or alias.name] = (whole, None) if file_of(whole) else (node.module, alias.name)
    return found


def resolve(path: Path, within: str, called: ast.expr) -> tuple[Path, str] | None:
    """Return the function of ours that `called` names in the function `within` of the file at `path`."""
    if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == "self":
        method = f"{within.partition('.')[0]}.{called.attr}"
        return (path, method) if method in functions(path) else None
    if isinstance(called, ast.Name):
        if called.id in functions(path):
            return path, called.id
        module, name = imported(path).get(called.id, (None, None))
    elif isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
        module, inner = imported(path).get(called.value.id, (None, None))
        name = called.attr if inner is None else None
    else:
        return None
    where = file_of(module) if module and name else None
    return (where, name) if where and name in functions(where) else None


def names_in(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def walk(place: str, value: str) -> Walk:
    """Return the walk of the parameter `value` of the function at `place`, such as kvdistill/commands/fio.py:fio."""
    file, _, name = place.partition(":")
    found = Walk()
    _follow(found, ROOT / file, name, {value}, None)
    return found


def _follow(found: Walk, path: Path, name: str, tracked: set[str], caller: Path | None) -> None:
    if not found.enter(path, name, caller):
        return
    known = set(tracked)
    steps = [
        n for n in ast.walk(functions(path)[name]) if isinstance(n, ast.Call | ast.Assign | ast.For | ast.withitem)
    ]
    # As they end in the text: a call before the assignment of what it returns.
    steps.sort(key=lambda n: (n.end_lineno or 0, n.end_col_offset or 0) if isinstance(n, ast.Call) else _end(n))
    for node in steps:
        if isinstance(node, ast.Call):
            given = [(i, a) for i, a in enumerate(node.args) if names_in(a) & known]
            named = [k for k in node.keywords if names_in(k.value) & known]
            where = resolve(path, name, node.func) if given or named else None
            if where is not None:
                parameters = [a.arg for a in functions(where[0])[where[1]].args.args if a.arg != "self"]
                taken = {parameters[i] for i, _ in given if i < len(parameters)} | {k.arg for k in named if k.arg}
                _follow(found, where[0], where[1], taken, path)
        elif isinstance(node, ast.Assign) and names_in(node.value) & known:
            known |= {name for target in node.targets for name in names_in(target)}
        elif isinstance(node, ast.For) and names_in(node.iter) & known:
            known |= names_in(node.target)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None and names_in(node.context_expr) & known:
            known |= names_in(node.optional_vars)


def _end(node: ast.AST) -> tuple[int, int]:
    last = node.iter if isinstance(node, ast.For) else node.context_expr if isinstance(node, ast.withitem) else node
    return (last.end_lineno or 0, (last.end_col_offset or 0) + 1)  # type: ignore[attr-defined]


_DEFINED = re.compile(r"^(?:static |inline |[A-Za-z_]\w*[ *]+)+([A-Za-z_]\w*)\(([^;{]*)\)\s*\{", re.MULTILINE)
_CALLED = re.compile(r"\b([a-z_]\w*)\(")


def c_functions(folder: Path) -> dict[str, tuple[Path, str]]:
    """Return of each C function below `folder` its file and its body."""
    found = {}
    for path in sorted([*folder.rglob("*.c"), *folder.rglob("*.h")]):
        text = path.read_text(encoding="utf-8")
        for match in _DEFINED.finditer(text):
            end = text.find("\n}", match.end())
            one_line = text.find("}", match.end())
            stop = one_line if "\n" not in text[match.end() : one_line] else end
            found[match[1]] = (path, text[match.end() : stop])
    return found


def walk_c(folder: str, start: str) -> Walk:
    """Return the walk from the C function `start`: all that it calls, each function once."""
    known, found = c_functions(ROOT / folder), Walk()

    def follow(name: str, caller: Path | None) -> None:
        path, body = known[name]
        if found.enter(path, name, caller):
            for called in _CALLED.findall(body):
                if called in known:
                    follow(called, path)

    follow(start, None)
    return found
