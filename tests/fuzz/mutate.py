"""Damage done to inputs with their structure in mind.

To bytes, lines and fields, trees of JSON, tables.

Each function takes what is whole and a random generator, and returns something that is almost that.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

NUMBERS = (
    0, 1, -1, 2, 127, 128, 255, 511, 513, 4096, 65_536, 2**31 - 2, 2**31 - 1, 2**31, -(2**31), 2**32, 2**50, 2**50 + 1,
    2**53 + 1, 2**62, 2**62 + 1, 2**63 - 1, -(2**63), 2**63, 2**64 - 1, 2**64, 10**30, -(10**30),
)  # fmt: skip
FLOATS = (
    "0.0",
    "-0.0",
    "1e308",
    "-1e308",
    "5e-324",
    "1e999",
    "0.1",
    "1.5",
    "NaN",
    "Infinity",
    "-Infinity",
    "1e-400",
)
HOSTILE = (
    "", " ", "\x00", "\x1b[2J\x1b]0;owned\x07", "\x9b31m", "a\nb", "\r\nkvtrace: error: fake", "\n[evil]\nfilename=/dev/null\n",
    "=cmd|' /C calc'!A0", "+1+1", "-1+1", "@SUM(A1)", "x" * 300, "x" * 100_000, "../../etc/passwd", "/dev/zero", "'; DROP",
    "\u202egnp", "\ud800", "\N{PILE OF POO}", "<script>alert(1)</script>", "%s%n{}{0}", "None", "null", "1", "1e5", "٣",
    "*", "[a]", "nvme", "gpu", "a,b", 'a"b', "a\tb", "\ufeff",
)  # fmt: skip
DEPTH = (10, 900, 1100, 100_000)


def number(rng: random.Random) -> int:
    """Return a number at an edge, or near one."""
    value = rng.choice(NUMBERS)
    return value + rng.randrange(-2, 3) if rng.random() < 0.3 else value


def bytes_of(data: bytes, rng: random.Random) -> bytes:
    """Return `data` with bits flipped, bytes replaced, cut out, doubled or moved."""
    if not data:
        return rng.randbytes(rng.randrange(64))
    kind, at = rng.randrange(8), rng.randrange(len(data))
    if kind == 0:
        return data[:at]
    if kind == 1:
        changed = bytearray(data)
        for _ in range(rng.choice((1, 1, 1, 2, 8))):
            changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return bytes(changed)
    size = min(rng.choice((1, 2, 4, 8, 64, 512)), len(data) - at)
    if kind == 2:
        return data[:at] + rng.randbytes(size) + data[at + size :]
    if kind == 3:
        return data[:at] + data[at + size :]
    if kind == 4:
        return data[:at] + data[at : at + size] * rng.choice((2, 3, 100)) + data[at + size :]
    if kind == 5:
        edge = rng.choice((b"\x00", b"\xff", b"\x80", b"\x7f")) * size
        return data[:at] + edge + data[at + size :]
    if kind == 6:
        return (
            data[:at]
            + rng.choice((b"\xff\xfe", b"\x00", b"\n", b"\xc3\x28", b"\xed\xa0\x80"))
            + data[at:]
        )
    return data + rng.choice((data, data[at:], b"\n", b"\x00" * 100))


def text_of(data: bytes, rng: random.Random, delimiters: str = ",") -> bytes:
    """Return lines of fields with a line or field damaged."""
    if rng.random() < 0.15:
        return bytes_of(data, rng)
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    kind = rng.randrange(10)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines[at:at] = [lines[rng.randrange(len(lines))]] * rng.choice((1, 2, 1000))
    elif kind == 2:
        other = rng.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
    elif kind == 3:
        lines[at] = bytes_of(lines[at], rng)
    else:
        delimiter = rng.choice(delimiters).encode()
        fields = lines[at].split(delimiter)
        field = rng.randrange(len(fields))
        if kind == 4:
            del fields[field]
        elif kind == 5:
            fields.insert(field, fields[rng.randrange(len(fields))])
        else:
            fields[field] = _token(rng)
        lines[at] = delimiter.join(fields)
    return b"\n".join(lines)


def _token(rng: random.Random) -> bytes:
    kind = rng.randrange(5)
    if kind <= 1:
        return str(number(rng)).encode()
    if kind == 2:
        return rng.choice(FLOATS).encode()
    if kind == 3:
        return rng.choice(HOSTILE).encode("utf-8", "surrogatepass")
    return rng.choice(
        (
            b"\xff\xfe\xfd",
            b"0x7fffffffffffffff",
            b"1_000",
            b" 12 ",
            b"1.",
            b"true",
            b"-",
            b"[" * 5000,
        )
    )


class Raw:
    """JSON text as it is to stand in a tree, valid or not."""

    def __init__(self, text: bytes) -> None:
        self.text = text


def tree_of(tree: Any, rng: random.Random) -> Any:
    """Return `tree`, values as of JSON, with one of its nodes replaced, removed or doubled.

    `json_of` encodes it.
    """
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], (dict, list)):
                walk(node[key])

    tree = copy.deepcopy(tree)
    if not isinstance(tree, (dict, list)) or not tree or rng.random() < 0.02:
        return _value(None, rng)
    walk(tree)
    node, key = rng.choice(places)
    kind = rng.randrange(12)
    if kind == 0:
        del node[key]
    elif kind == 1 and isinstance(node, list):
        node.extend([node[key]] * rng.choice((1, 2, 200)))
    elif kind == 1:
        node[rng.choice(HOSTILE)] = node[key]
    elif kind == 2:
        other, at = rng.choice(places)
        if not isinstance(
            other.get(at) if isinstance(other, dict) else other[at] if at < len(other) else None,
            (dict, list),
        ):
            node[key] = other[at] if isinstance(other, list) or at in other else None
    else:
        node[key] = _value(node[key], rng)
    return tree


def _value(before: Any, rng: random.Random) -> Any:
    kind = rng.randrange(9)
    if kind <= 2:
        return number(rng)
    if kind == 3:
        return rng.choice(HOSTILE)
    if kind == 4:
        return Raw(rng.choice(FLOATS).encode())
    if kind == 5:
        return rng.choice(
            (None, True, False, [], {}, [None], {"": None}, [before], {"a": before}, [[]], "")
        )
    if kind == 6:
        depth = rng.choice(DEPTH)
        is_list = rng.random() < 0.5
        return Raw(
            b"[" * depth + b"]" * depth if is_list else b'{"a":' * depth + b"1" + b"}" * depth
        )
    if kind == 7:
        return Raw(
            rng.choice(
                (
                    b'"\xff\xfe"',
                    b'"\xed\xa0\x80"',
                    b'"\\ud800"',
                    b"nul",
                    b"[",
                    b'"',
                    b"01",
                    b"9" * 5000,
                )
            )
        )
    return str(before) if not isinstance(before, str) else len(before)


def json_of(tree: Any) -> bytes:
    """Return `tree` as JSON, with what is `Raw` as it stands."""
    if isinstance(tree, Raw):
        return tree.text
    if isinstance(tree, dict):
        return b"{" + b",".join(_string(k) + b":" + json_of(v) for k, v in tree.items()) + b"}"
    if isinstance(tree, list):
        return b"[" + b",".join(map(json_of, tree)) + b"]"
    return _string(tree) if isinstance(tree, str) else json.dumps(tree).encode()


def _string(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass")


def several(change: Callable[[Any, random.Random], Any], value: Any, rng: random.Random) -> Any:
    """Return `value` changed once, or a few times."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        value = change(value, rng)
    return value
