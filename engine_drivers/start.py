"""Run one driver in the interpreter of an engine: `python start.py DRIVER SETTINGS.json`.

That interpreter need not have kvreplay: this package alone is made importable there, so that no
library of ours takes the place of the engine's.
"""

import os
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent


def main(driver: str, settings: str) -> None:
    """Run `driver` with the settings in the file `settings`."""
    # Python puts a program's folder first: its files must not be taken for the engine's modules.
    sys.path[:] = [place for place in sys.path if Path(place or ".").resolve() != HERE]
    package = ModuleType(HERE.name)
    package.__path__ = [str(HERE)]
    sys.modules[HERE.name] = package
    drive = import_module(f"{HERE.name}.{driver}").drive
    code = import_module(f"{HERE.name}.recorder").run(drive, settings)
    sys.stdout.flush()
    sys.stderr.flush()
    # Engines leave threads behind that would keep the process.
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
