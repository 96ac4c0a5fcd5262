"""What the command lines of the three programs share.

Groups of options, errors in one line, JSON, progress.
"""

from __future__ import annotations

import errno
import gc
import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import Field, field, fields, is_dataclass
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, NoReturn, TypeVar, cast, get_args

import typer
import typer.main
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from kvtrace import __version__
from kvtrace.core.errors import DeviceError, KvError, OutOfMemory, TraceError
from kvtrace.core.json_types import JsonObject
from kvtrace.core.parameters import add_options, named_as_options
from kvtrace.core.signals import INTERRUPTED, handled_signals, raised_signals, was_interrupted
from kvtrace.core.units import printable

T = TypeVar("T")

# typer's root of usage errors has no public name, and not the same place in all versions.
UsageError = cast(
    "type[typer.BadParameter]",
    next(c for c in typer.BadParameter.__mro__ if c.__name__ == "UsageError"),
)
"""What the command line refuses."""
_GARBAGE_OBJECTS = 100_000
_LONGEST_WORD = 200
_READERS = ("duckdb", "_duckdb", "pyarrow", "polars")
_INTERRUPTED = "Query interrupted"
"""What DuckDB makes of a signal that comes while it works."""
_NO_MEMORY = "out of memory: the machine, or a limit on this process (ulimit -v), has too little"
_NO_THREAD = "can't start new thread"
_TOO_LITTLE = (
    "failed to map segment",
    "not enough memory",
)  # the loader of libraries, and zstd through Arrow
PROGRAM: ContextVar[str] = ContextVar("program", default="kvtrace")
"""Which of the three runs."""
NOTED: ContextVar[list[str]] = ContextVar("noted", default=[])  # noqa: B039 - never changed
"""The signals that `noted_signals` has caught, for what waits in the main thread."""
QUIET: ContextVar[bool] = ContextVar("quiet", default=False)
"""Set by --quiet, which every command takes: of stderr, errors alone."""


Force = Annotated[
    bool,
    typer.Option("--force", help="Overwrite existing output: a file, or the content of a folder."),
]
"""Of a command whose output is a folder.

Who marks a file's option `writable` has --force, and need not look at it.
"""
Plot = Annotated[
    Path | None,
    typer.Option(
        "--plot", writable=True, help="Draw a chart: a page (*.html), or *.svg, *.png or *.pdf."
    ),
]


SECTIONS = {
    "Source": (
        "source block-tokens time-unit tokenizer max-conversations max-input-tokens over-limit"
        " time-window conversation-rate live-conversations cycle-ids cycles jitter time-scale scale"
        " scale-common scale-shift"
    ),
    "Arrivals": "turns request-rate arrivals burstiness amplitude day idle-cap start-ratio",
    "Model": "kv-dtype tp layers kv-heads head-dim chunk-tokens",
    "Fleet": "nodes router rack-nodes prefill-nodes event",
    "Load": (
        "as-fast-as-possible pool checkpoint-depth engine submitters buffered gds direct fsync"
        " fadvise layout queue-depths speeds jobs ignore-streams node"
    ),
    "Ranks": "mpi partition rank-timeout",
    "Limits": "from to busiest whole max-duration warmup on-error pause capacity stall-timeout",
    "Target": (
        "target destroy-data overwrite-signature discard precondition keep space huge-pages"
        " fio-version endpoint s3-client balance retries request-timeout log-version bucket host hosts"
    ),
    "Data": "dedup-ratio compress-ratio",
    "Checks": (
        "verify criteria requests read-p99 dry-run break-rules check check-duration check-bytes"
        " check-null"
    ),
    "Probes": "histograms-only",
    "Training": "ranks every mtbf",
    "Output": "requests-out drive-size endurance plot csv markdown force metrics",
}
"""Of a command with many options, the section of each that `--help` leaves to `--help-all`."""
METAVARS = {
    "DURATION": (
        "duration ttl scale-shift idle-cap jitter day every mtbf from to busiest max-duration"
        " check-duration rank-timeout request-timeout stall-timeout pause read-p99 target-ttft"
    ),
    "SIZE": "io-bytes pool capacity check-bytes drive-size space cpu disk",
    "SIZES": "dram nvme capacity-blocks",
    "RATE": "request-rate",
    "SHARE": "target-hit scale-common",
    "LIMIT": "limit warmup",
    "NAME": (
        "model preset gpu router source policy engine arrivals tokenizer layout bucket kv-dtype"
        " turns"
    ),
    "HOST:PORT": "host metrics",
}
"""What stands for an option's value in help, where its type does not tell."""
RENAMED = {
    "--max-requests": "--limit",
    "--runtime": "--duration",
    "--max-runtime": "--max-duration",
    "--check-seconds": "--check-duration",
    "--html": "--plot",
    "--deal": "--partition",
    "--dir": "--tier nvme=",
}
"""Former names of options, where a command has the new one."""
_SECTION_OF = {
    f"--{name}": section for section, names in SECTIONS.items() for name in names.split()
}
_METAVAR_OF = {
    f"--{name}": metavar for metavar, names in METAVARS.items() for name in names.split()
}
_METAVAR_OF_TYPE = {int: "N", float: "X", Path: "PATH"}
_MANY_OPTIONS = 12
_ALL, _QUIET, _FORCE = "--help-all", "--quiet", "--force"


class Command(TyperCommand):
    """A command whose `--help` lists the common options, and `--help-all` the others, too, by what
    they are about.

    A file that a parameter which is `writable` names is not written over without --force.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        """Name each option's value by what one writes there."""
        super().__init__(*args, **settings)
        for parameter in self.params:
            if isinstance(parameter, TyperOption) and not parameter.is_flag:
                of_type = _METAVAR_OF_TYPE.get(parameter.type_descriptor.annotation)
                named = (_METAVAR_OF[name] for name in parameter.opts if name in _METAVAR_OF)
                parameter.metavar = parameter.metavar or of_type or next(named, "TEXT")
        ours = [p for p in self.params if isinstance(p, TyperOption | TyperArgument)]
        self._written = [p for p in ours if p.type_descriptor.parameter_info.writable]
        if self._written and all(_FORCE not in parameter.opts for parameter in self.params):
            (force,) = command_of(_force, "").params
            force.expose_value = False
            self.params.append(force)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take what every command takes.

        `--quiet`, and `--help-all` for `--help` with all options.
        """
        ours = args[: args.index("--")] if "--" in args else args
        known = {name for parameter in self.params for name in parameter.opts}
        for name in {arg.partition("=")[0] for arg in ours} & RENAMED.keys() - known:
            if RENAMED[name].split()[0] in known:
                raise UsageError(f"{name} was renamed: use {RENAMED[name]}", ctx=ctx)
        self._refuse_repeated(ctx, ours)
        add_options(
            {p.name: p.opts[0] for p in self.params if p.opts[0].startswith("--") and p.name}
        )
        ctx.meta[_ALL] = _ALL in ours
        QUIET.set(
            _QUIET in ours if ctx.parent else QUIET.get()
        )  # without a parent, a study asks what `gen` takes
        left = super().parse_args(
            ctx, ["--help"] if ctx.meta[_ALL] else [arg for arg in args if arg != _QUIET]
        )
        for parameter in [] if ctx.resilient_parsing else self._written:
            from kvtrace.core.files import check_new
            from kvtrace.core.tables import SUFFIXES, objects_path

            named = ctx.params[parameter.name] or []
            how = (
                f"with {parameter.opts[0]}"
                if isinstance(parameter, TyperOption)
                else f"{parameter.metavar}"
            )
            for path in named if isinstance(named, list | tuple) else [named]:
                # A trace's objects table, which would go with it, may be there alone.
                for each in (path, *([objects_path(path)] if str(path).endswith(SUFFIXES) else [])):
                    check_new(Path(each), how, is_forced=_FORCE in ours)
        return left

    def _refuse_repeated(self, ctx: Any, args: Sequence[str]) -> None:
        """Raise UsageError if an option that takes one value is given twice in `args`.

        Click would use the last value alone.
        """
        names = [argument.partition("=")[0] for argument in args]
        for parameter in self.params:
            if not isinstance(parameter, TyperOption) or parameter.is_flag or parameter.multiple:
                continue
            count = sum(names.count(name) for name in parameter.opts)
            if count > 1:
                raise UsageError(
                    f"{parameter.opts[0]} is given {count} times, but takes one value", ctx=ctx
                )

    def get_short_help_str(self, limit: int = 0) -> str:  # noqa: ARG002 - what does not fit goes on in the next line
        """Return the first line of the help, whole."""
        return (self.help or "").strip().partition("\n")[0]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then the options under their headings."""
        records = [
            (parameter, parameter.get_help_record(ctx)) for parameter in self.get_params(ctx)
        ]
        arguments = [record for p, record in records if record and p.param_type_name == "argument"]
        options = [(p, record) for p, record in records if record and p.param_type_name == "option"]
        sections: dict[str, list[Any]] = {
            "Arguments": arguments,
            "Options": [],
            **{name: [] for name in SECTIONS},
        }
        for parameter, record in options:
            named = next(
                (_SECTION_OF[name] for name in parameter.opts if name in _SECTION_OF), "Options"
            )
            sections[named if len(options) > _MANY_OPTIONS else "Options"].append(record)
        sections["Options"].insert(
            -1, (_QUIET, "Print only errors on stderr: no notes, no progress.")
        )
        others = [name for name in SECTIONS if sections[name]]
        if others and not ctx.meta.get(_ALL):
            more = sum(len(sections.pop(name)) for name in others)
            sections["Options"].append(
                (_ALL, f"Also show {more} more options: {', '.join(others).lower()}.")
            )
        for name, listed in sections.items():
            if listed:
                with formatter.section(name):
                    formatter.write_dl(listed)


def _force(force: Force = False) -> None:
    pass


class Group(TyperGroup):
    """A group of commands, each imported when it is first asked for."""

    sources: ClassVar[dict[str, str]] = {}
    """Of each command's name, its `module:function`."""

    def __init__(self, **settings: Any) -> None:
        """Name all commands, and load none."""
        super().__init__(**settings)
        self.commands: JsonObject = {**dict.fromkeys(self.sources), **self.commands}

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of this name; None if there is none."""
        if cmd_name in self.sources and self.commands[cmd_name] is None:
            module, _, function = self.sources[cmd_name].partition(":")
            self.commands[cmd_name] = command_of(getattr(import_module(module), function), cmd_name)
        return super().get_command(ctx, cmd_name)


def command_of(function: Callable[..., Any], name: str) -> Any:
    """Return `function` as a command of this name."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(name, cls=Command)(takes_groups(function))
    return typer.main.get_command(app)


def make_app(program: str, summary: str, epilog: str, *commands: str) -> typer.Typer:
    """Return the Typer application of `program`: plain help, shell completion, `--version`.

    Each of `commands` is the `module:function` of one; an underscore behind the function is not of
    its name.
    """

    class Commands(Group):
        sources: ClassVar = {source.partition(":")[2].rstrip("_"): source for source in commands}

    app = typer.Typer(
        name=program,
        cls=Commands,
        help=summary,
        epilog=epilog,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    def show_version(value: bool) -> None:
        if value:
            typer.echo(f"{program} {__version__}")
            raise typer.Exit

    @app.callback()
    def root(
        _version: bool = typer.Option(
            False,
            "--version",
            callback=show_version,
            is_eager=True,
            help="Print the version and exit.",
        ),
    ) -> None:
        pass

    root.__doc__ = summary
    return app


def option(
    text: str,
    default: Any = None,
    flags: str = "",
    *,
    parse: Callable[[Any], Any] | None = None,
    **how: Any,
) -> Any:
    """Return what stands for the default of a command's parameter, or of a group's field, that is
    an option.

    `text` is its help, `flags` are its names if it is not called as the parameter; `how` goes to
    Typer. A default of `...` means that it must be given. A field may have a function `parse`,
    which takes what is written and returns the value: the option's type is that of the function's
    parameter, and its help says the default.
    """
    return field(
        default=default,
        metadata={"option": typer.Option(*flags.split(), help=text, **how), "parse": parse},
    )


def takes_groups(command: Callable[..., T]) -> Callable[..., T]:
    """Return `command` as Typer takes it.

    An argument of a dataclass stands for the options among that class's fields.

    `--help` lists the fields in the place of the argument, and the command gets one instance. So a
    group is written once, whichever commands take it, whole or, as `Annotated[ModelArguments,
    "model"]`, some fields of it:

        @dataclass(frozen=True, slots=True)
        class ModelArguments:
            model: str = option("The model whose KV cache is simulated.", "llama3.1-8b")
            kv_dtype: str | None = option("Element type of the cache.")

        def size(file: TraceFile, as_json: AsJson = False, *, model: ModelArguments) -> None: ...
    """
    groups: dict[str, tuple[type, dict[str, Callable[[Any], Any] | None]]] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        kind, *only = get_args(parameter.annotation) or (parameter.annotation,)
        if isinstance(parameter.default, Field) or not (
            isinstance(kind, type) and is_dataclass(kind)
        ):
            parameters.append(_said(parameter, parameter.default))
            continue
        groups[name] = kind, {}
        own, known = (
            inspect.signature(kind, eval_str=True).parameters,
            {of.name: of for of in fields(kind)},
        )
        for of, as_field in own.items():
            said = _said(as_field, known[of])
            if hasattr(said.annotation, "__metadata__") and (not only or of in only):
                groups[name][1][of] = known[of].metadata.get("parse")
                parameters.append(said)

    @wraps(command)
    def run_command(**values: Any) -> T:
        for name, (kind, parsers) in groups.items():
            given = [(field, values.pop(field), parse) for field, parse in parsers.items()]
            own = {
                f: parse(value) if parse else value
                for f, value, parse in given
                if value is not None or not parse
            }
            values[name] = kind(**own)
        return command(**values)

    keyword_only = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    run_command.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]
    run_command.__annotations__ = {p.name: p.annotation for p in keyword_only}
    return run_command


def _said(parameter: inspect.Parameter, default: object) -> inspect.Parameter:
    """Return `parameter` with the option that its `default` stands for, if it is one."""
    if not isinstance(default, Field) or "option" not in default.metadata:
        return parameter
    kind, value, parse = parameter.annotation, default.default, default.metadata["parse"]
    if parse is not None:
        written = next(iter(inspect.signature(parse, eval_str=True).parameters.values())).annotation
        kind, value = written | None, None
    return parameter.replace(annotation=Annotated[kind, default.metadata["option"]], default=value)


def run(app: typer.Typer, program: str) -> NoReturn:
    """Run `app` and leave with its exit code.

    Every error a user can cause is one line on stderr.
    """
    PROGRAM.set(program)
    with raised_signals(), named_as_options():
        _run(app, program)


def _run(app: typer.Typer, program: str) -> NoReturn:
    # Python looks for garbage whenever it has made 700 more objects: 0.1 s and more of a start.
    gc.set_threshold(_GARBAGE_OBJECTS)
    try:
        code = app(standalone_mode=False, prog_name=program)
    except KvError as error:
        _fail(program, str(error), error.exit_code)
    except UsageError as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else program
        message = error.format_message()
        # `no_args_is_help` arrives as an error whose message is the whole help.
        if "Usage:" in message:
            typer.echo(message, err=True)
            sys.exit(2)
        end = "" if message.rstrip().endswith((".", "?", "!")) else "."
        _fail(program, f"{message}{end} See {command} --help.", 2)
    except (KeyboardInterrupt, typer.Abort):
        _fail(program, "interrupted", INTERRUPTED)
    except SystemExit as left:
        # typer and rich leave with 1 where the reader of our stdout left, as `| head` does.
        sys.exit(0 if isinstance(left.__context__, BrokenPipeError) else left.code)
    except Exception as error:  # noqa: BLE001 - what is neither the system's nor a file's is raised again
        _fail_by_system(program, error)
    if code == INTERRUPTED:
        # typer makes this of a KeyboardInterrupt.
        _fail(program, "interrupted", INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def _fail_by_system(program: str, error: Exception) -> NoReturn:
    """Leave for a fault of the system's, or of a file as a library finds it.

    Raise `error` again if it is ours.
    """
    if was_interrupted():
        _fail(program, "interrupted", INTERRUPTED)
    is_out = isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM
    if is_out or any(words in str(error) for words in _TOO_LITTLE):
        _fail(program, _NO_MEMORY, OutOfMemory.exit_code)
    if isinstance(error, OSError) and error.errno is not None:
        where = f"{error.filename}: " if error.filename else ""
        _fail(program, f"{where}{error.strerror or error}", DeviceError.exit_code)
    if isinstance(error, RuntimeError) and _NO_THREAD in str(error):
        _fail(program, f"{_NO_MEMORY} to start a thread", OutOfMemory.exit_code)
    if _INTERRUPTED in str(error):
        _fail(program, "interrupted", INTERRUPTED)
    # Arrow's own errors of a damaged file are an OSError without a number.
    if isinstance(error, OSError) or type(error).__module__.split(".")[0] in _READERS:
        files = [name for name in sys.argv[1:] if os.path.exists(name)]  # noqa: PTH110 - a name may be no path at all
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        _fail(
            program, f"{', '.join(files) or 'input'}: cannot be read: {said}", TraceError.exit_code
        )
    raise error


def leave_at_once(code: int) -> NoReturn:
    """End the process without the interpreter's own end, in which a library might wait for others
    that are gone.
    """
    sys.stdout.flush()
    os._exit(code)


def _fail(program: str, message: str, code: int) -> NoReturn:
    words = (
        word if len(word) <= _LONGEST_WORD else f"{word[:_LONGEST_WORD]}…"
        for word in message.split()
    )
    typer.echo(f"{program}: error: {printable(' '.join(words))}", err=True)
    sys.exit(code)


def command_line() -> list[str]:
    """Return the command line of the program that runs, as outputs record it."""
    return [PROGRAM.get(), *sys.argv[1:]]


def emit_json(value: object) -> None:
    """Print `value` as indented JSON on stdout; `value` may hold msgspec structs."""
    import msgspec

    # Within JSON such characters stand in strings alone, where their codes mean the same.
    typer.echo(printable(msgspec.json.format(msgspec.json.encode(value), indent=2).decode()))


def log(message: str) -> None:
    """Print a line on stderr, unless --quiet."""
    if not QUIET.get():
        typer.echo(printable(message), err=True)


@contextmanager
def progress(label: str, total: float | None = None) -> Iterator[Callable[[float], None]]:
    """Yield a function that takes the amount done so far.

    Shows a bar on stderr, if a terminal and not --quiet.
    """
    if QUIET.get() or not sys.stderr.isatty():
        yield lambda _done: None
        return
    from rich import progress as bars
    from rich.console import Console

    columns = [
        bars.SpinnerColumn(),
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.TextColumn("{task.percentage:>3.0f} %" if total else "{task.completed:,.0f}"),
        bars.TimeElapsedColumn(),
        bars.TimeRemainingColumn(),
    ]
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done: bar.update(task, completed=done)


@contextmanager
def noted_signals() -> Iterator[Callable[[], str | None]]:
    """Yield a function that names the signal that asked to stop, if one did.

    Meanwhile neither ends the process.

    Outside the main thread, which alone receives signals, there never is one.
    """
    caught: list[str] = []
    NOTED.set(caught)
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return

    def note(number: int, _frame: object) -> None:
        caught.append(signal.Signals(number).name)

    try:
        with handled_signals(note):
            yield lambda: caught[0] if caught else None
    finally:
        NOTED.set([])
