"""Types of JSON whose fields another program, or another version of this one, decides."""

from __future__ import annotations

from typing import Any

JsonObject = dict[str, Any]
"""A decoded JSON object: its values are text, numbers, booleans, None, lists and objects."""
