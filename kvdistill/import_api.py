"""The public function of kvdistill that imports logs and results of other tools."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvdistill.formats.formats import Account, Format, ImportOptions
from kvdistill.formats.importing import import_files
from kvtrace.core.errors import ConfigError
from kvtrace.core.parameters import named, suggest_keywords


@suggest_keywords
def import_file(
    files: str | Path | Sequence[str | Path],
    output: str | Path,
    *,
    format: Format | str,  # noqa: A002 - the word for it, as in polars and pandas
    tier: str | None = None,
    overwrite: bool = False,
    argv: Sequence[str] = ("kvdistill.import_file",),
) -> Account:
    """Read logs or results of another tool into tables, for reports, comparisons and jobs.

    `files` are one file or several of one `format`, such as "warp", "fio-json" or "blkparse". The
    tables go to the folder `output`; `overwrite` replaces an earlier import there. `tier` names the
    tier that the tool ran on. A figure that a format does not hold is null.

    Returns the account: files written, rows read, accepted and rejected by reason. Raises
    ConfigError for an unknown format, TraceError if a file is missing, damaged, or of another
    format, and DeviceError if the folder holds other files.

    Examples:
        >>> iolog = pathlib.Path("job.iolog")
        >>> lines = ["fio version 2 iolog", "d.dat add", "d.dat open", "d.dat write 0 4096"]
        >>> _ = iolog.write_text("\\n".join([*lines, "d.dat close", ""]))
        >>> account = kvdistill.import_file(iolog, "imported", format="fio-iolog")
        >>> account.files, account.rows_kept
        (['trace.objects.parquet', 'trace.parquet'], 1)
    """
    listed = [files] if isinstance(files, str | Path) else files
    formats = {str(kind): kind for kind in Format}
    if str(format) not in formats:
        raise ConfigError(f"{named('format', format)}: known are {', '.join(formats)}")
    return import_files(
        [Path(file) for file in listed],
        ImportOptions(formats[str(format)], tier),
        Path(output),
        list(argv),
        is_forced=overwrite,
    )
