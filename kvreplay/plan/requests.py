"""What the requests of a trace asked for: the table that `kvtrace gen --requests-out` writes beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvtrace.core.errors import ConfigError
from kvtrace.core.metadata import Metadata
from kvtrace.core.schema import REQUESTS
from kvtrace.core.tables import open_table

_COLUMNS = ("request_id", "arrival_ns", "input_tokens", "qos")
NO_QOS = -1


@dataclass(frozen=True, slots=True)
class Asked:
    """Requests in order of request_id, numpy columns of one length."""

    request_id: Any
    arrival_ns: Any
    """From the start of the trace."""
    input_tokens: Any
    qos: Any
    """int8: codes of the service class; -1 if unknown."""

    def places(self, request_id: Any) -> Any:
        """Return where each of `request_id` (sorted) stands; -1 for one that is not here."""
        import numpy as np

        if not len(self.request_id):
            return np.full(len(request_id), -1)
        at = np.minimum(np.searchsorted(self.request_id, request_id), len(self.request_id) - 1)
        return np.where(self.request_id[at] == request_id, at, -1)


def read_asked(path: Path, trace: Metadata) -> Asked:
    """Return the requests at `path`; ConfigError unless they are those of the trace with the metadata `trace`."""
    import numpy as np

    reader = open_table(path, REQUESTS)
    if reader.meta.config_sha256 != trace.config_sha256:
        raise ConfigError(
            f"--requests {path}: of another simulation than the trace; make both in one kvtrace gen --requests-out"
        )
    parts: list[list[Any]] = [[np.zeros(0, np.int64)] for _ in _COLUMNS]
    for batch in reader.batches(_COLUMNS):
        for part, name in zip(parts, _COLUMNS, strict=True):
            values = batch.column(name)
            part.append((values.indices.fill_null(NO_QOS) if name == "qos" else values).to_numpy(zero_copy_only=False))
    request_id, arrival_ns, input_tokens, qos = (np.concatenate(part) for part in parts)
    order = np.argsort(request_id, kind="stable")
    return Asked(request_id[order], arrival_ns[order], input_tokens[order], qos[order].astype(np.int8))
