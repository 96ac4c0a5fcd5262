"""Plain values of a command line are converted as Typer converts them, without Pydantic."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import pytest
import typer
import typer.main

from kvtrace.core.app import Command


class Colour(StrEnum):
    RED = "red"
    DARK_BLUE = "dark-blue"


def _parameters(cls):
    def command(
        text: str = "t",
        number: int = typer.Option(5, min=-3, max=100),
        share: float = typer.Option(1, min=0),
        path: Path = Path("a"),
        colour: Colour = Colour.RED,
        names: list[str] = (),
        paths: list[Path] = (),
        colours: list[Colour] = (Colour.RED,),
        limit: int | None = None,
    ) -> None: ...

    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command("c", cls=cls)(command)
    return typer.main.get_command(app)


def _parsed(command, arguments):
    try:
        with command.make_context("c", list(arguments)) as context:
            return dict(context.params)
    except Exception as error:  # noqa: BLE001 - compared with the other's
        return type(error).__name__, str(error)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--text", ""],
        ["--text=x y"],
        *(
            ["--number", n]
            for n in ("7", "-3", "-4", "101", "1_0", " 7", "\uff17", "0x7", "1.0", "9" * 30)
        ),
        *(["--share", n] for n in ("7", ".5", "1e3", "-1", "nan", "inf", "0.25", "1_0.5", "x")),
        *(["--path", p] for p in ("/etc/hostname", "/no/such", "-", "", "a\0b", "/root")),
        *(["--colour", c] for c in ("red", "dark-blue", "RED", "green", "")),
        ["--names", "a", "--names", ""],
        ["--paths", "a", "--paths", "/tmp"],
        ["--colours", "dark-blue", "--colours", "red"],
        ["--colours", "pink"],
        ["--limit", "3"],
        ["--limit", "x"],
    ],
)
def test_values_are_what_typer_makes_of_them(arguments):
    from typer.core import TyperCommand

    assert _parsed(_parameters(Command), arguments) == _parsed(_parameters(TyperCommand), arguments)


def test_types_are_the_declared_ones():
    values = _parsed(
        _parameters(Command),
        ["--share", "2", "--number", "3", "--path", "p", "--colour", "red", "--paths", "q"],
    )
    assert [type(values[name]) for name in ("share", "number", "colour")] == [float, int, Colour]
    assert values["path"] == Path("p")
    assert values["paths"] == [Path("q")]
