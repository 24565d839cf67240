"""Rows of tokens for a language model, from files of texts, conversations or token ids."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from io import TextIOWrapper
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from ortpartial.annotations import Json
from ortpartial.exceptions import DataError, RuntimeMissingError
from ortpartial.installation import install_command
from ortpartial.model import open_regular, read_regular
from ortpartial.texts import parse_json

__all__ = ["Row", "TextReader", "read_json", "read_texts"]

#: The label of a token that the loss does not count.
_IGNORED = -100


@dataclass(frozen=True)
class Row:
    """The tokens of a text.

    Parameters
    ----------
    ids : numpy.ndarray
        The tokens.
    labels : numpy.ndarray
        The same, and -100 for tokens that the loss does not count.
    """

    ids: np.ndarray
    labels: np.ndarray

    @property
    def is_counted(self) -> bool:
        """Whether the loss counts a token; never the first, as no other predicts it."""
        return bool((self.labels[1:] != _IGNORED).any())


def read_texts(path: Path, reader: TextReader, length: int) -> tuple[list[Row], int, int]:
    """The rows of a file.

    Parameters
    ----------
    path : pathlib.Path
        A ``.jsonl`` file, each line of which is an object with a ``"text"``, with ``"prompt"`` and ``"completion"``,
        with ``"messages"`` or with ``"input_ids"``, or a list of token ids; a ``.txt`` file with a text in each line;
        or an ``.npy`` file with an array of token ids, (rows, tokens) or (tokens,).
    reader : TextReader
        The reader that makes tokens of texts.
    length : int
        How many tokens of a row are kept.

    Returns
    -------
    rows : list of Row
        The rows of which the loss counts a token.
    cut, empty : int
        How many rows are longer, and how many are left out.

    Raises
    ------
    DataError
        The file is none of these, a line of it is not, or no row is left.
    RuntimeMissingError
        Texts need a package that is not installed.
    OSError
        It cannot be read.
    """
    if path.suffix == ".npy":
        rows = [_to_row(ids, f"row {i} of {path}") for i, ids in enumerate(np.atleast_2d(_load_array(path)))]
    elif path.suffix == ".txt":
        rows = [reader.read_text(line) for _, line in _list_lines(path)]
    elif path.suffix in (".jsonl", ".ndjson"):
        rows = [_read_line(line, reader, f"line {number} of {path}") for number, line in _list_lines(path)]
    else:
        raise DataError(f"{str(path)!r} is to end in .jsonl, .txt or .npy, for texts or token ids.")
    cut = sum(len(row.ids) > length for row in rows)
    kept = [row for row in (Row(row.ids[:length], row.labels[:length]) for row in rows) if row.is_counted]
    if not kept:
        raise DataError(f"{str(path)!r} has no row with a token to learn: one that stands behind another, among "
                        f"the first {length} of its row.")
    return kept, cut, len(rows) - len(kept)


def _list_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file that are not empty, with their numbers."""
    try:
        with TextIOWrapper(open_regular(path), encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line.rstrip("\r\n")
    except UnicodeDecodeError as e:
        raise DataError(f"{str(path)!r} is no text in UTF-8: {e.reason} at byte {e.start}.") from None


def _load_array(path: Path) -> np.ndarray:
    """The array of an ``.npy`` file."""
    open_regular(path).close()
    try:
        # Mapped, and so not larger than the file, whatever its header says.
        array: np.ndarray = np.lib.format.open_memmap(path, mode="r")
    except (ValueError, EOFError) as e:
        raise DataError(f"{str(path)!r} is no .npy file: {e}") from None
    if array.dtype.kind not in "iu" or array.ndim not in (1, 2):
        raise DataError(f"{str(path)!r} holds {array.dtype}{list(array.shape)}, and token ids are whole numbers of "
                        f"shape (rows, tokens).")
    return array


def _read_line(line: str, reader: TextReader, where: str) -> Row:
    """The row of a line of JSON."""
    try:
        record = parse_json(line)
    except ValueError as e:
        raise DataError(f"{where} is no JSON: {e}.") from None
    if isinstance(record, list):
        return _to_row(record, where)
    if not isinstance(record, dict):
        raise DataError(f"{where} is neither an object nor a list of token ids.")
    if "input_ids" in record:
        return _to_row(record["input_ids"], where, record.get("labels"))
    if isinstance(record.get("messages"), list):
        return reader.read_messages(record["messages"], where)
    prompt, completion = record.get("prompt"), record.get("completion")
    if isinstance(prompt, str) and isinstance(completion, str):
        return reader.read_text(prompt + completion, len(prompt))
    if isinstance(record.get("text"), str):
        return reader.read_text(record["text"])
    raise DataError(f"{where} has none of text, prompt with completion, messages and input_ids; it has "
                    f"{', '.join(map(repr, record)) or 'nothing'}.")


def _to_row(ids: Any, where: str, labels: Any = None) -> Row:
    """The row of token ids, all of which count unless labels say otherwise."""
    arrays = []
    for numbers in (ids, ids if labels is None else labels):
        try:
            array = np.asarray(numbers if len(numbers) else np.zeros(0, np.int64))
        except (TypeError, ValueError):
            array = np.zeros(0)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise DataError(f"{where} is no list of token ids, which are whole numbers.")
        arrays.append(array.astype(np.int64))
    if len(arrays[0]) != len(arrays[1]):
        raise DataError(f"{where} has {len(arrays[0])} input_ids and {len(arrays[1])} labels.")
    return Row(*arrays)


def read_json(path: Path) -> Json:
    """The object in a file of JSON; nothing where there is no such file, or it holds something else."""
    try:
        content = parse_json(read_regular(path))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


class TextReader:
    """Reader of texts as tokens, by the tokenizer and the template of conversations that stand beside a model.

    Parameters
    ----------
    folder : path
        The folder, such as onnxruntime-genai's builder writes it.
    """

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = Path(folder)
        model = read_json(self.folder / "genai_config.json").get("model")
        self.settings = model if isinstance(model, dict) else {}

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer."""
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise RuntimeMissingError(f"Texts need the package tokenizers: run {install_command('cli')}, or give "
                                      f"token ids.") from None
        path = self.folder / "tokenizer.json"
        if not path.exists():
            raise DataError(f"There is no {str(path)!r} for texts; give token ids, as {{\"input_ids\": [...]}}.")
        try:
            return Tokenizer.from_buffer(read_regular(path))
        except Exception as e:  # tokenizers 0.23 raises Exception itself.
            raise DataError(f"{str(path)!r} is no tokenizer: {e}.") from None

    @cached_property
    def names(self) -> Json:
        """Special tokens in the tokenizer's settings, such as ``"eos_token"``."""
        config = read_json(self.folder / "tokenizer_config.json")
        return {n: v.get("content") if isinstance(v, dict) else v for n, v in config.items() if n.endswith("_token")}

    @cached_property
    def end(self) -> int | None:
        """The token at which a text ends."""
        ids = self.settings.get("eos_token_id")
        ids = ids[0] if isinstance(ids, list) and ids else ids
        if isinstance(ids, int):
            return ids
        name = self.names.get("eos_token")
        token: int | None = self.tokenizer.token_to_id(name) if isinstance(name, str) else None
        return token

    @cached_property
    def template(self) -> Any:
        """The template of conversations, of jinja2."""
        path = self.folder / "chat_template.jinja"
        text = read_regular(path).decode() if path.exists() else \
            read_json(self.folder / "tokenizer_config.json").get("chat_template")
        if not isinstance(text, str):
            raise DataError(f"There is no chat_template.jinja in {str(self.folder)!r} for messages; give texts.")
        try:
            from jinja2.sandbox import ImmutableSandboxedEnvironment  # A template is code of strangers.
        except ImportError:
            raise RuntimeMissingError(f"Messages need the package jinja2: run {install_command('cli')}, or give "
                                      f"texts.") from None

        def refuse(message: str) -> None:
            raise ValueError(message)

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                    extensions=["jinja2.ext.loopcontrols"])
        environment.globals["raise_exception"] = refuse
        try:
            return environment.from_string(text)
        except Exception as e:  # jinja2 imports the class of its errors with itself.
            raise DataError(f"The template of conversations in {str(self.folder)!r} is damaged: {e}.") from None

    def read_text(self, text: str, start: int = 0, is_whole: bool = True) -> Row:
        """The tokens of a text, counted from some character on.

        Parameters
        ----------
        text : str
            The text.
        start : int
            The first character to be learned.
        is_whole : bool
            Whether tokens before and after a text, such as the end token, are to be added to it.
        """
        encoding = self.tokenizer.encode(text, add_special_tokens=is_whole)
        counted = [not start or stop > start for _, stop in encoding.offsets]
        ids = list(encoding.ids)
        if is_whole and self.end is not None and ids[-1:] != [self.end]:
            ids, counted = [*ids, self.end], [*counted, True]
        tokens = np.array(ids, np.int64)
        return Row(tokens, np.where(np.array(counted, bool), tokens, _IGNORED))

    def read_messages(self, messages: list[object], where: str) -> Row:
        """The tokens of a conversation, whose last message is counted.

        Parameters
        ----------
        messages : list of dict
            With a ``"role"`` and a ``"content"``.
        where : str
            Where they stand.
        """
        if not all(isinstance(m, dict) and "role" in m and "content" in m for m in messages):
            raise DataError(f"{where} has messages that are no objects with a role and a content.")
        try:
            whole, before = (self.template.render(messages=part, add_generation_prompt=is_open, **self.names)
                             for part, is_open in ((messages, False), (messages[:-1], True)))
        except (DataError, RuntimeMissingError):
            raise
        except Exception as e:  # Whatever a template raises.
            raise DataError(f"{where} has messages that the template refuses: {e}.") from None
        same = (a == b for a, b in zip(whole, before, strict=False))
        return self.read_text(whole, sum(takewhile(bool, same)), is_whole=False)
