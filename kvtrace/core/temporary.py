"""Temporary folders of the objects that the public API returns before they are saved."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path


class TemporaryFolder:
    """A folder that is deleted with the last reference to this object, or as the program ends."""

    def __init__(self, prefix: str) -> None:
        """Make the folder in the system's place for temporary files."""
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        self._delete = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)

    def keep_until_exit(self) -> None:
        """Keep the folder until the program ends.

        A lazy frame names a file but holds no reference to this object, so a folder whose files
        lazy frames may still read must not be deleted before.
        """
        _KEPT.append(self)


_KEPT: list[TemporaryFolder] = []
