"""The shared part of the command lines of the three programs.

It has groups of options, help in sections, errors in one line, JSON output and progress bars.
"""

from __future__ import annotations

import errno
import gc
import inspect
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from kvtrace.core.errors import ConfigError, DeviceError, KvError, OutOfMemory, TraceError
from kvtrace.core.json_types import JsonObject
from kvtrace.core.memory_guard import guard_memory
from kvtrace.core.parameters import add_options, named_as_options
from kvtrace.core.plain_values import convert_plainly
from kvtrace.core.signals import INTERRUPTED, handled_signals, raised_signals, was_interrupted
from kvtrace.core.units import printable

T = TypeVar("T")

# typer's root of usage errors has no public name, and not the same place in all versions.
UsageError = cast(
    "type[typer.BadParameter]",
    next(base for base in typer.BadParameter.__mro__ if base.__name__ == "UsageError"),
)
"""An error in the command line, such as an unknown option."""
_GARBAGE_COLLECTION_OBJECTS = 100_000
"""New objects after which Python looks for garbage.

Its own threshold is 700, and costs 0.1 s or more while a command starts.
"""
_MAX_WORD_LENGTH = 200
"""Characters of a word that an error message shows."""
_READER_LIBRARIES = ("duckdb", "_duckdb", "pyarrow", "polars")
"""Libraries whose errors mean that an input file is damaged."""
_DUCKDB_INTERRUPTED = "Query interrupted"
"""DuckDB's message when a signal interrupts a query."""
_NO_MEMORY = "out of memory: the machine, or a limit on this process (ulimit -v), has too little"
_NO_THREAD = "can't start new thread"
_NO_MEMORY_MESSAGES = ("failed to map segment", "not enough memory")
"""Messages of the loader of libraries, and of zstd through Arrow, for a lack of memory."""
PROGRAM: ContextVar[str] = ContextVar("program", default="kvtrace")
"""Name of the program that runs: kvtrace, kvreplay or kvdistill."""
NOTED: ContextVar[list[str]] = ContextVar("noted", default=[])  # noqa: B039 - never changed
"""Names of the signals that `noted_signals` has caught, for code that waits in the main thread."""
QUIET: ContextVar[bool] = ContextVar("quiet", default=False)
"""Whether stderr shows errors alone; set by --quiet, which every command takes."""


Force = Annotated[
    bool,
    typer.Option("--force", help="Overwrite existing output: a file, or the content of a folder."),
]
"""The option --force of a command that writes a folder.

A command with a parameter that is marked `writable` gets --force from `Command`, which also checks
it.
"""
Plot = Annotated[
    Path | None,
    typer.Option(
        "--plot", writable=True, help="Draw a chart: a page (*.html), or *.svg, *.png or *.pdf."
    ),
]
PlotPage = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--plot",
        writable=True,
        help="Draw a chart: a page with sliders (*.html), or *.svg, *.png or *.pdf.",
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
        " fio-version endpoint s3-client balance retries request-timeout log-version bucket host"
        " hosts"
    ),
    "Data": "dedup-ratio compress-ratio",
    "Checks": (
        "verify criteria requests read-p99 dry-run break-rules check check-duration check-bytes"
        " check-null"
    ),
    "Probes": "histograms-only",
    "Search": "sample workers scheduler",
    "Training": "ranks every mtbf",
    "Output": "requests-out drive-size endurance day-profile plot csv markdown force metrics",
}
"""The options that only `--help-all` shows, by section, for commands with many options."""
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
"""The placeholder of an option's value in help, if its type does not determine it."""
RENAMED = {
    "--max-requests": "--limit",
    "--runtime": "--duration",
    "--max-runtime": "--max-duration",
    "--check-seconds": "--check-duration",
    "--html": "--plot",
    "--deal": "--partition",
    "--dir": "--tier nvme=",
}
"""Former names of options; the error for one names the new option if the command has it."""
_SECTION_OF = {
    f"--{name}": section for section, names in SECTIONS.items() for name in names.split()
}
_METAVAR_OF = {
    f"--{name}": metavar for metavar, names in METAVARS.items() for name in names.split()
}
_METAVAR_OF_TYPE = {int: "N", float: "X", Path: "PATH"}
_MANY_OPTIONS = 12
_HELP_ALL, _QUIET, _FORCE = "--help-all", "--quiet", "--force"


class Command(TyperCommand):
    """A command that lists its common options for `--help`, and all of them for `--help-all`.

    If a parameter is marked `writable`, the file that it names is overwritten only with --force.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        """Set the placeholder of each option's value, and add --force if a file is written."""
        super().__init__(*args, **settings)
        for parameter in self.params:
            if isinstance(parameter, TyperOption) and not parameter.is_flag:
                by_type = _METAVAR_OF_TYPE.get(parameter.type_descriptor.annotation)
                by_name = (_METAVAR_OF[name] for name in parameter.opts if name in _METAVAR_OF)
                parameter.metavar = parameter.metavar or by_type or next(by_name, "TEXT")
        self._output_parameters = [
            parameter
            for parameter in self.params
            if isinstance(parameter, TyperOption | TyperArgument)
            and parameter.type_descriptor.parameter_info.writable
        ]
        has_force = any(_FORCE in parameter.opts for parameter in self.params)
        if self._output_parameters and not has_force:
            (force,) = command_of(_force, "").params
            force.expose_value = False
            self.params.append(force)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse `args`; also `--quiet` and `--help-all`, which every command takes.

        UsageError for a former name of an option, or for an option that is given twice. DeviceError
        if an output exists and --force is not given. Return the arguments that no parameter took.
        """
        # Arguments after -- belong to a program that the command starts.
        own_args = args[: args.index("--")] if "--" in args else args
        self._refuse_renamed(ctx, own_args)
        self._refuse_repeated(ctx, own_args)
        add_options(
            {
                parameter.name: parameter.opts[0]
                for parameter in self.params
                if parameter.name and parameter.opts[0].startswith("--")
            }
        )
        ctx.meta[_HELP_ALL] = _HELP_ALL in own_args
        # Without a parent, a study parses options of `gen`: the study's own --quiet stays.
        if ctx.parent:
            QUIET.set(_QUIET in own_args)
        parsed_args = [arg for arg in args if arg != _QUIET]
        if ctx.meta[_HELP_ALL]:
            parsed_args = ["--help"]
        convert_plainly(self.get_params(ctx))
        remaining_args = super().parse_args(ctx, parsed_args)
        if not ctx.resilient_parsing:
            self._check_outputs(ctx, is_forced=_FORCE in own_args)
            self._fetch_inputs(ctx)
        return remaining_args

    def _fetch_inputs(self, ctx: typer.Context) -> None:
        """Replace the paths of traces in S3 by those of local files, which are fetched."""
        for name, value in ctx.params.items():
            paths = value if isinstance(value, list) else [value]
            if any(isinstance(path, Path) and str(path).startswith("s3:/") for path in paths):
                with progress("fetching bytes from S3") as tick:
                    local_paths = [_fetched(path, tick) for path in paths]
                ctx.params[name] = local_paths if isinstance(value, list) else local_paths[0]

    def _check_outputs(self, ctx: typer.Context, *, is_forced: bool) -> None:
        """Raise DeviceError if a file that the command writes exists, unless `is_forced`."""
        from kvtrace.core.files import check_new
        from kvtrace.core.tables import SUFFIXES, objects_path

        for parameter in self._output_parameters:
            value = ctx.params[parameter.name] or []
            paths = value if isinstance(value, list | tuple) else [value]
            name_hint = str(parameter.metavar)
            if isinstance(parameter, TyperOption):
                name_hint = f"with {parameter.opts[0]}"
            for path in paths:
                if str(path).startswith("s3:/"):
                    raise ConfigError(
                        f"{name_hint} s3://...: outputs are written to local files; write one, and"
                        " copy it"
                    )
                check_new(Path(path), name_hint, is_forced=is_forced)
                if str(path).endswith(SUFFIXES):
                    # The objects table of a trace is overwritten with it, and may exist alone.
                    check_new(objects_path(path), name_hint, is_forced=is_forced)

    def _refuse_renamed(self, ctx: typer.Context, args: Sequence[str]) -> None:
        """Raise UsageError if `args` has the former name of one of the command's options."""
        option_names = {name for parameter in self.params for name in parameter.opts}
        arg_names = {arg.partition("=")[0] for arg in args}
        for name in arg_names & RENAMED.keys() - option_names:
            if RENAMED[name].split()[0] in option_names:
                raise UsageError(f"{name} was renamed: use {RENAMED[name]}", ctx=ctx)

    def _refuse_repeated(self, ctx: typer.Context, args: Sequence[str]) -> None:
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

    def get_short_help_str(self, limit: int = 0) -> str:  # noqa: ARG002 - long lines are wrapped
        """Return the whole first line of the help."""
        return (self.help or "").strip().partition("\n")[0]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then the options under the headings of their sections."""
        sections: dict[str, list[Any]] = {"Arguments": [], "Options": []}
        sections |= {name: [] for name in SECTIONS}
        options = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record and parameter.param_type_name == "argument":
                sections["Arguments"].append(record)
            elif record and parameter.param_type_name == "option":
                options.append((parameter, record))
        for parameter, record in options:
            section = "Options"
            if len(options) > _MANY_OPTIONS:
                matches = (_SECTION_OF[name] for name in parameter.opts if name in _SECTION_OF)
                section = next(matches, "Options")
            sections[section].append(record)
        # --help stays last.
        sections["Options"].insert(
            -1, (_QUIET, "Print only errors on stderr: no notes, no progress.")
        )
        folded = [name for name in SECTIONS if sections[name]]
        if folded and not ctx.meta.get(_HELP_ALL):
            hidden_options = sum(len(sections.pop(name)) for name in folded)
            sections["Options"].append(
                (
                    _HELP_ALL,
                    f"Also show {hidden_options} more options: {', '.join(folded).lower()}.",
                )
            )
        for name, records in sections.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)


def _fetched(path: object, tick: Callable[[float], None]) -> object:
    """Return the local path of a trace in S3; any other value as it is."""
    from kvtrace.core.remote import is_remote, local_path

    return local_path(path, tick) if isinstance(path, Path) and is_remote(path) else path


def _force(force: Force = False) -> None:
    """Declare --force alone, so that `Command` can take the option from here."""


class Group(TyperGroup):
    """A group of commands, each of which is imported when it is first used."""

    sources: ClassVar[dict[str, str]] = {}
    """The `module:function` of each command, by its name."""
    summaries: ClassVar[dict[str, str]] = {}
    """One line about each command, by its name."""

    def __init__(self, **settings: Any) -> None:
        """List all commands without importing them."""
        super().__init__(**settings)
        self.commands: JsonObject = {**dict.fromkeys(self.sources), **self.commands}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options before the command; return the arguments that no parameter took."""
        convert_plainly(self.get_params(ctx))
        return super().parse_args(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command called `cmd_name`; None if there is none."""
        if cmd_name in self.sources and self.commands[cmd_name] is None:
            module, _, function = self.sources[cmd_name].partition(":")
            self.commands[cmd_name] = command_of(getattr(import_module(module), function), cmd_name)
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - of Typer
        """Write the list of commands without importing them, which would take 0.2 s."""
        if self.summaries:
            with formatter.section("Commands"):
                formatter.write_dl(list(self.summaries.items()))


def command_of(function: Callable[..., Any], name: str) -> Any:
    """Return `function` as a command called `name`."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(name, cls=Command)(takes_groups(function))
    return typer.main.get_command(app)


def make_app(program: str, summary: str, epilog: str, commands: Mapping[str, str]) -> typer.Typer:
    """Return the Typer application of `program`: plain help, shell completion, `--version`.

    `commands` has the `module:function` of each command, and one line about it, which is the first
    paragraph of the function's docstring. The command has the name of the function, without an
    underscore at its end.
    """
    names = {source: source.partition(":")[2].rstrip("_") for source in commands}

    class Commands(Group):
        sources: ClassVar = {name: source for source, name in names.items()}
        summaries: ClassVar = {name: commands[source] for source, name in names.items()}

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
    **settings: Any,
) -> Any:
    """Declare an option, as the default of a command's parameter or of a group's field.

    `text` is its help. `flags` are its names if they do not follow from the parameter's name.
    `settings` are passed to Typer. A default of `...` makes the option mandatory. A field may have
    a function `parse` that converts the value on the command line. Then the option has the type of
    the function's parameter, and its help must state the default.
    """
    return field(
        default=default,
        metadata={"option": typer.Option(*flags.split(), help=text, **settings), "parse": parse},
    )


def takes_groups(command: Callable[..., T]) -> Callable[..., T]:
    """Return `command` with each parameter that is a dataclass replaced by options.

    The options are the fields of the dataclass, and the command gets one instance of it. So a group
    of options is declared once for all commands. `Annotated[ModelArguments, "model"]` takes only
    the fields that it names::

        @dataclass(frozen=True, slots=True)
        class ModelArguments:
            model: str = option("The model whose KV cache is simulated.", "llama3.1-8b")
            kv_dtype: str | None = option("Element type of the cache.")

        def size(file: TraceFile, as_json: AsJson = False, *, model: ModelArguments) -> None: ...
    """
    # The dataclass, and the parser of each of its options, by parameter of the command.
    groups: dict[str, tuple[type, dict[str, Callable[[Any], Any] | None]]] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        annotation, *selected_fields = get_args(parameter.annotation) or (parameter.annotation,)
        is_group = isinstance(annotation, type) and is_dataclass(annotation)
        if isinstance(parameter.default, Field) or not is_group:
            parameters.append(_with_option(parameter, parameter.default))
            continue
        parsers: dict[str, Callable[[Any], Any] | None] = {}
        fields_by_name = {field.name: field for field in fields(annotation)}
        field_parameters = inspect.signature(annotation, eval_str=True).parameters
        for field_name, field_parameter in field_parameters.items():
            declared = _with_option(field_parameter, fields_by_name[field_name])
            is_option = hasattr(declared.annotation, "__metadata__")
            if is_option and (not selected_fields or field_name in selected_fields):
                parsers[field_name] = fields_by_name[field_name].metadata.get("parse")
                parameters.append(declared)
        groups[name] = annotation, parsers

    @wraps(command)
    def run_command(**values: Any) -> T:
        for name, (group_class, parsers) in groups.items():
            group_values = {}
            for field_name, parse in parsers.items():
                value = values.pop(field_name)
                if parse is None:
                    group_values[field_name] = value
                elif value is not None:
                    group_values[field_name] = parse(value)
            values[name] = group_class(**group_values)
        return command(**values)

    keyword_only = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters
    ]
    run_command.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]
    run_command.__annotations__ = {
        parameter.name: parameter.annotation for parameter in keyword_only
    }
    return run_command


def _with_option(parameter: inspect.Parameter, default: object) -> inspect.Parameter:
    """Return `parameter` as the option that `default` declares; unchanged if it declares none."""
    if not isinstance(default, Field) or "option" not in default.metadata:
        return parameter
    annotation, value = parameter.annotation, default.default
    parse = default.metadata["parse"]
    if parse is not None:
        parse_parameters = inspect.signature(parse, eval_str=True).parameters
        annotation = next(iter(parse_parameters.values())).annotation | None
        value = None
    return parameter.replace(
        annotation=Annotated[annotation, default.metadata["option"]], default=value
    )


def run(app: typer.Typer, program: str) -> NoReturn:
    """Run `app` and end the process with its exit code.

    Every error that a user can cause is one line on stderr.
    """
    PROGRAM.set(program)
    try:
        with raised_signals(), named_as_options():
            _run(app, program)
    except KeyboardInterrupt:
        _fail(program, "interrupted", INTERRUPTED)


def _run(app: typer.Typer, program: str) -> NoReturn:
    gc.set_threshold(_GARBAGE_COLLECTION_OBJECTS)
    guard_memory()
    try:
        code = app(standalone_mode=False, prog_name=program)
    except OutOfMemory as error:
        _fail_for_memory(program, str(error))
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
    except typer.Abort:
        _fail(program, "interrupted", INTERRUPTED)
    except SystemExit as system_exit:
        # typer and rich exit with 1 if the reader of our stdout ended first, as `| head` does.
        is_broken_pipe = isinstance(system_exit.__context__, BrokenPipeError)
        sys.exit(0 if is_broken_pipe else system_exit.code)
    except Exception as error:  # noqa: BLE001 - faults of our own are raised again
        _fail_by_system(program, error)
    if code == INTERRUPTED:
        # typer turns a KeyboardInterrupt into this code.
        _fail(program, "interrupted", INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def _fail_by_system(program: str, error: Exception) -> NoReturn:
    """End with one line for a lack of memory, an error of the system, or a damaged input.

    Raise `error` again if it is none of these, for it is a fault in our code.
    """
    if was_interrupted():
        _fail(program, "interrupted", INTERRUPTED)
    is_memory_error = (
        isinstance(error, MemoryError)
        or getattr(error, "errno", None) == errno.ENOMEM
        or any(message in str(error) for message in _NO_MEMORY_MESSAGES)
    )
    if is_memory_error:
        _fail_for_memory(program, _NO_MEMORY)
    if isinstance(error, OSError) and error.errno is not None:
        where = f"{error.filename}: " if error.filename else ""
        _fail(program, f"{where}{error.strerror or error}", DeviceError.exit_code)
    if isinstance(error, RuntimeError) and _NO_THREAD in str(error):
        _fail_for_memory(program, f"{_NO_MEMORY} to start a thread")
    if _DUCKDB_INTERRUPTED in str(error):
        _fail(program, "interrupted", INTERRUPTED)
    # Arrow raises an OSError without a number for a damaged file.
    library = type(error).__module__.split(".")[0]
    if isinstance(error, OSError) or library in _READER_LIBRARIES:
        # os.path, because Path.exists raises an error for an argument that cannot be a path.
        files = [arg for arg in sys.argv[1:] if os.path.exists(arg)]  # noqa: PTH110
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        message = f"{', '.join(files) or 'input'}: cannot be read: {reason}"
        _fail(program, message, TraceError.exit_code)
    raise error


def leave_at_once(code: int) -> NoReturn:
    """End the process without Python's own shutdown.

    During the shutdown a library, such as MPI, might wait for processes that have ended.
    """
    sys.stdout.flush()
    os._exit(code)


def _fail_for_memory(program: str, message: str) -> NoReturn:
    """Print `message` as one line on stderr and exit with OutOfMemory's exit code.

    Under a limit on the address space, libraries crash in Python's own shutdown where they cannot
    allocate memory: a signal would replace the exit code.
    """
    _print_error(program, message)
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        leave_at_once(OutOfMemory.exit_code)
    sys.exit(OutOfMemory.exit_code)


def _fail(program: str, message: str, code: int) -> NoReturn:
    """Print `message` as one line on stderr and exit with `code`."""
    _print_error(program, message)
    sys.exit(code)


def _print_error(program: str, message: str) -> None:
    words = [
        word if len(word) <= _MAX_WORD_LENGTH else f"{word[:_MAX_WORD_LENGTH]}…"
        for word in message.split()
    ]
    typer.echo(f"{program}: error: {printable(' '.join(words))}", err=True)


def command_line() -> list[str]:
    """Return the command line of the program that runs, as outputs record it."""
    return [PROGRAM.get(), *sys.argv[1:]]


def emit_json(value: object) -> None:
    """Print `value` as indented JSON on stdout; `value` may hold msgspec structs."""
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    # Unprintable characters occur only in JSON strings, where their escape means the same.
    typer.echo(printable(text))


def log(message: str) -> None:
    """Print a line on stderr, unless --quiet; line breaks, as names of files may have, as codes."""
    if not QUIET.get():
        typer.echo(printable(message).replace("\n", "\\u000a"), err=True)


@contextmanager
def progress(label: str, total: float | None = None) -> Iterator[Callable[[float], None]]:
    """Show a progress bar on stderr, if it is a terminal and --quiet is not set.

    Yield a function that takes the amount completed so far; `total` is the amount at the end.
    """
    if QUIET.get() or not sys.stderr.isatty():
        yield lambda _completed: None
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
        yield lambda completed: bar.update(task, completed=completed)


@contextmanager
def noted_signals() -> Iterator[Callable[[], str | None]]:
    """Catch the signals that ask the process to stop, such as SIGINT, within the block.

    Yield a function that returns the name of the first signal caught, or None. Outside the main
    thread, which alone receives signals, it always returns None.
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
