"""The walls of the house.

Who may import whom, how large a room is, what stays out of start-up, what is generated.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("kvtrace", "kvreplay", "kvdistill")
HEAVY = {"numpy", "pyarrow", "polars", "duckdb", "dgen_py", "rich", "zstandard", "pandas"}

FLOW = {
    "kvtrace": [
        "core",
        "core.run",
        "core.metrics",
        "core.document",
        "native",
        "requests",
        "llm",
        "sim",
        "curves",
        "studies",
        "trace",
        "commands",
        "",
    ],
    "kvreplay": [
        "plan",
        "tiers",
        "engine",
        "probes",
        "result",
        "run",
        "experiments",
        "ranks",
        "commands",
        "",
    ],
    "kvdistill": ["queries", "formats", "profile", "jobs", "reports", "commands", ""],
}
"""Each program's folders in the order of the flow, its command line (the top level) last."""
SHARED = (
    "kvtrace.core",
    "kvtrace.core.native",
    "kvtrace.core.run",
    "kvtrace.core.metrics",
    "kvtrace.core.document",
)


ACROSS_PROGRAMS = {
    ("kvdistill.jobs.reference", "kvreplay"),  # the check of a job replays its source
    ("kvreplay.run.library", "kvdistill"),  # kvreplay.compare calls kvdistill.compare
}
"""The modules that call another program's library, and which."""


MAX_ARROWS = 24
"""Pairs of kvreplay's folders of which one imports the other."""


@cache
def tree(path: Path) -> ast.Module:
    """Return the syntax tree of the file at `path`."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def modules() -> dict[str, Path]:
    """Return the product's modules by their dotted names."""
    found = {}
    for program in PROGRAMS:
        for path in sorted((ROOT / program).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path) -> set[str]:
    """Return the modules that the file at `path` imports, anywhere in it, for types alone or not."""
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@cache
def graph() -> dict[str, set[str]]:
    """Return for each module the product's modules that it imports."""
    known = modules()
    found = {}
    for module, path in known.items():
        named = imports(path)
        found[module] = {n if n in known else n.rpartition(".")[0] for n in named} & set(known) - {
            module
        }
    return found


def folder(module: str) -> tuple[str, str]:
    """Return the program of a module and its folder within that, "" for the top level."""
    program, *inner = modules()[module].relative_to(ROOT).parent.parts
    return program, ".".join(inner)


def step(program: str, room: str) -> int:
    """Return a folder's place in the flow.

    A folder within a step (sim/policies) is part of it, unless it is named.
    """
    while room not in FLOW[program] and "." in room:
        room = room.rpartition(".")[0]
    assert room in FLOW[program], f"the folder {room} of {program} has no place in the flow"
    return FLOW[program].index(room)


def test_a_folder_imports_only_earlier_steps_of_the_flow():
    wrong = []
    for module, imported in graph().items():
        program, room = folder(module)
        here = step(program, room)
        for other in imported:
            its_program, its_room = folder(other)
            if other == its_program:
                continue  # __version__
            if its_program != program:
                is_allowed = (
                    f"{its_program}.{its_room}" in SHARED
                    or (module, its_program) in ACROSS_PROGRAMS
                )
            else:
                is_allowed = step(program, its_room) <= here
            if not is_allowed:
                wrong.append(f"{module} -> {other}")
    assert not wrong


REPLAY_IMPORTS = {
    "plan": set(),
    "tiers": {"plan"},
    "engine": {"plan", "tiers"},
    "probes": {"tiers"},
    "result": {"plan", "tiers", "engine"},
    "run": {"plan", "tiers", "engine", "probes", "result"},
    "experiments": {"plan", "tiers", "result", "run"},
    "ranks": {"plan", "result", "run"},
    "commands": {"plan", "probes", "run", "experiments", "ranks"},
}
"""The folders that each folder of kvreplay imports, as docs/architecture.md has them: 24 arrows."""


def first_folder(module: str) -> tuple[str, str]:
    """Return a module's program and folder; a folder within that one counts as a part of it."""
    program, room = folder(module)
    return program, room.partition(".")[0]


def test_kvreplay_folders_import_as_the_page_says():
    imported_folders = defaultdict(set)
    for module, imported in graph().items():
        program, room = first_folder(module)
        if program != "kvreplay" or not room:
            continue
        for other in imported:
            its_program, its_room = first_folder(other)
            if its_program == program and its_room not in ("", room):
                imported_folders[room].add(its_room)
    assert {room: imported_folders[room] for room in REPLAY_IMPORTS} == REPLAY_IMPORTS
    assert set(imported_folders) <= set(REPLAY_IMPORTS)
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for room, allowed in REPLAY_IMPORTS.items():
        row = re.search(rf"^\| `{room}` \| (.*) \|$", page, re.MULTILINE)
        assert row is not None, room
        assert set(re.findall(r"`(\w+)`", row[1])) == allowed, room


def test_no_two_files_of_kvreplay_share_a_name():
    places = defaultdict(list)
    for path in (ROOT / "kvreplay").rglob("*.py"):
        if path.parent.name != "commands" and path.name != "__init__.py":
            places[path.name].append(path)
    assert not {name: paths for name, paths in places.items() if len(paths) > 1}


def test_drivers_of_engines_import_nothing_of_ours():
    """They run in an engine's own interpreter, which need not have us."""
    for path in sources("engine_drivers"):
        ours = re.findall(
            r"^\s*(?:from|import) (kv\w+)", path.read_text(encoding="utf-8"), re.MULTILINE
        )
        assert not ours, path


def test_no_module_imports_itself_in_a_circle():
    """Imports within functions and for types alone count.

    What needs another's insides is part of it.
    """
    # The packages themselves name the public API for types, and modules ask them for __version__.
    left = {
        module: imported - set(PROGRAMS)
        for module, imported in graph().items()
        if module not in PROGRAMS
    }
    while free := {module for module, imported in left.items() if not imported & set(left)}:
        for module in free:
            del left[module]
    # What is left is in circles or imports one; take off, too, what none of the rest imports.
    while unused := set(left) - {other for imported in left.values() for other in imported}:
        for module in unused:
            del left[module]
    assert not left, f"import circles among {sorted(left)}"


def sources(program: str) -> list[Path]:
    """Return the files of a program's code: Python and C."""
    return [
        path for kind in ("*.py", "*.c", "*.h") for path in sorted((ROOT / program).rglob(kind))
    ]


def test_no_public_class_name_is_defined_twice():
    places = defaultdict(list)
    for module, path in modules().items():
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module)
    assert not {name: where for name, where in places.items() if len(where) > 1}


def test_folders_say_what_they_are_for():
    for module, path in modules().items():
        if path.name == "__init__.py":
            assert ast.get_docstring(tree(path)), f"{module} has no docstring"


def test_the_page_of_the_architecture_names_every_folder():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = {str(path.parent.relative_to(ROOT)) for path in modules().values()} - set(PROGRAMS)
    assert not {room for room in rooms if f"`{room}" not in page}


def test_every_path_that_the_page_names_exists():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:kvtrace|kvreplay|kvdistill|tests|bench|docs)/[\w./-]+)`", page)
    assert not {name for name in named if not (ROOT / name).exists()}


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_loads_no_heavy_library(program):
    code = (
        f"import sys\nfrom {program}.cli import main\nsys.argv = ['{program}', '--help']\ntry:\n   "
        " main()\nexcept SystemExit as e:\n    print('code', e.code)\nprint('loaded',"
        " *sys.modules)\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert "code 0" in out
    assert "Commands:" in out
    loaded = out.partition("loaded ")[2].split()
    assert not HEAVY & set(loaded)


def test_the_simulator_reads_no_clock():
    banned = {"time", "datetime", "random", "secrets", "uuid"}
    # What follows a live engine.
    clocked = ROOT / "kvtrace" / "requests" / "record.py"
    for path in (ROOT / "kvtrace").rglob("*.py"):
        if path != clocked:
            assert not banned & {m.split(".")[0] for m in imports(path)}, path.name


@pytest.mark.parametrize("program", PROGRAMS)
def test_library_code_neither_prints_nor_exits(program):
    for path in (ROOT / program).rglob("*.py"):
        if path.name in (
            "app.py",
            "signals.py",
            "start.py",
        ):  # kvtrace/core, and what starts in an engine's own interpreter
            continue
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in (
                    "print",
                    "sys.exit",
                    "exit",
                    "os._exit",
                ), f"{path.name}:{node.lineno} {called}"


def test_schemas_and_command_pages_are_up_to_date():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    page = generate.man_page("kvreplay", "run")
    assert page.startswith('.TH "KVREPLAY-RUN" 1\n.SH NAME\nkvreplay-run \\- ')
    assert "--queue-depth" in page
    for path, text in generate.pages().items():
        assert (ROOT / path).read_text(encoding="utf-8") == text, (
            f"{path} is out of date: run make docs"
        )


def test_few_folders_of_kvreplay_import_each_other():
    arrows = {
        (module.split(".")[1], other.split(".")[1])
        for module, others in graph().items()
        for other in others
        if module.count(".") > 1
        and other.count(".") > 1
        and module.startswith("kvreplay.")
        and other.startswith("kvreplay.")
    }
    assert len({(a, b) for a, b in arrows if a != b}) <= MAX_ARROWS


MAX_ANY_LINES = 152
"""Lines of our code that name `Any`, each at a foreign format or at C."""


def test_few_lines_name_any():
    lines = [
        line
        for path in modules().values()
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"\bAny\b", line) and "import" not in line
    ]
    assert len(lines) < MAX_ANY_LINES
