"""Forged files: JSON and headers of safetensors with another entry, such as one of another type, huge, or missing."""

import copy
import json
import zlib

__all__ = ["forge", "forge_header", "forge_json"]

#: Marks of texts that JSON of Python does not write: a key twice, thousands of brackets, a number of 5,000 digits.
RAW = {"@twice": '{"a": 1, "a": 2}', "@deep": "[" * 5000 + "]" * 5000, "@digits": "9" * 5000, "@huge": "1e999"}
ENTRIES = [None, True, -1, 0, 2**31, 2**63, 10**30, 1.5, float("nan"), float("inf"), "", "²", "٣", "9" * 5000, "\0",
           "a\0b", "../x", "x" * 10**5, "\x1b[2J", [], {}, [[]], [0, 2**62], {"a": 1}, *RAW]


def write(entry):
    """JSON with the marks replaced by their texts."""
    text = json.dumps(entry)
    for mark, raw in RAW.items():
        text = text.replace(json.dumps(mark), raw)
    return text


def walk(entry, path=()):
    if path:
        yield path
    for key, part in entry.items() if isinstance(entry, dict) else enumerate(entry) if isinstance(entry, list) else ():
        yield from walk(part, (*path, key))


def forge(entry, rng):
    """The same JSON with another entry, or without one."""
    paths, entry = list(walk(entry)), copy.deepcopy(entry)
    *outer, last = paths[rng.integers(len(paths))]
    inner = entry
    for key in outer:
        inner = inner[key]
    if rng.integers(5):
        inner[last] = ENTRIES[rng.integers(len(ENTRIES))]
    else:
        del inner[last]
    return write(entry)


def forge_json(path, rng):
    path.write_text(forge(json.loads(path.read_text()), rng))


def forge_header(path, rng):
    """A safetensors file with another header, behind a right checksum where it has one."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = forge(json.loads(data[8 : 8 + size]), rng).encode()
    data = len(header).to_bytes(8, "little") + header + data[8 + size :]
    if (i := data.find(b'"crc32": "')) > 0:
        blank = data[: i + 10] + b"0" * 8 + data[i + 18 :]
        data = data[: i + 10] + b"%08x" % zlib.crc32(blank) + data[i + 18 :]
    path.write_bytes(data.replace(b'"crc32": ', b'"crc32":'))
