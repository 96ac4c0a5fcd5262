"""The fields of one object in a config.json, with where they stand and which of them were read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvtrace.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Fields:
    """An object of a JSON file; remembers what was asked for, so that the rest can be looked at."""

    tree: dict[str, Any]
    where: str
    used: set[str] = field(default_factory=set)

    def error(self, name: str, message: str) -> ConfigError:
        """Return the error that says what is wrong with the field `name`."""
        return ConfigError(f"{self.where}: {name}: {message}")

    def use(self, *names: str) -> None:
        """Count `names` as read."""
        self.used.update(names)

    def get(self, name: str) -> Any:
        """Return the value of `name`; None if it is null or absent."""
        self.used.add(name)
        return self.tree.get(name)

    def integer(self, name: str, least: int = 1) -> int:
        """Return the whole number `name`; ConfigError if it is absent, something else, or less than `least`."""
        value = self.get(name)
        if value is None:
            raise self.error(name, "is missing")
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.error(name, f"must be a whole number >= {least}, not {value!r}")
        return value

    def count(self, name: str) -> int:
        """Return the whole number `name`, 0 if it is absent or null."""
        return 0 if self.get(name) is None else self.integer(name, least=0)

    def text(self, name: str) -> str | None:
        """Return the text `name`, None if it is absent or null; ConfigError if it is something else."""
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            raise self.error(name, f"must be text, not {value!r}")
        return value

    def nested(self, name: str) -> Fields | None:
        """Return the object `name`, None if it is absent or null; ConfigError if it is something else."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(name, f"must be an object, not {value!r}")
        return Fields(value, f"{self.where}: {name}")

    def numbers(self, name: str) -> list[int]:
        """Return the list of whole numbers `name`; ConfigError if it is something else."""
        value = self.get(name)
        if not isinstance(value, list) or not all(isinstance(v, int) and not isinstance(v, bool) for v in value):
            raise self.error(name, f"must be a list of whole numbers, not {value!r}")
        return value
