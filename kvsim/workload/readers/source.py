"""Files as rows: plain, gzip or zstandard; JSON lines, one JSON document, or CSV; read as a stream."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO, cast

from kvsim.errors import Problem, TraceError

_GZIP, _ZSTD, _PARQUET = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1"
_MAX_DOCUMENT = 512 * 2**20
"""Characters of a file that is one JSON document: such a file cannot be read as a stream."""


_BATCH = 1 << 16
"""Characters of JSON that are parsed at once: a call a line costs as much as a short line itself."""
_ROWS = 1000
"""Rows of one JSON document that are handed on at once."""
_UNPACKED = 1 << 17
"""Bytes that are unpacked at once."""


class Row(NamedTuple):
    """One row of a file; a named tuple because files have millions.

    Attributes
    ----------
    where : str
        File and line.
    values : dict or None
        Its fields; None if it is not a row of this kind of file.
    text : str
        Its beginning, for messages, where `values` is None.
    problem : str or None
        What would have been accepted, where `values` is None.
    """

    where: str
    values: dict[str, Any] | None
    text: str = ""
    problem: str | None = None


class Batch(NamedTuple):
    """Neighbouring rows of a file.

    Attributes
    ----------
    objects : list of dict or None
        Their fields; None if some are not rows of this kind of file.
    rows : iterator of Row
        The same rows one by one, to be asked for once.
    """

    objects: list[dict[str, Any]] | None
    rows: Iterator[Row]


@contextmanager
def open_text(path: str | Path) -> Generator[TextIO]:
    """Open a file as text; its first bytes say whether it is compressed.

    Raises
    ------
    TraceError
        It cannot be read, is cut off, is not text, or is zstandard and the package ``zstandard`` is missing.
    """
    try:
        with open(path, "rb") as raw:
            head = raw.peek(4)[:4]
            binary = _gzip(raw) if head.startswith(_GZIP) else _zstd(raw, path) if head == _ZSTD else raw
            with io.TextIOWrapper(binary, encoding="utf-8-sig", newline="") as text:
                try:
                    yield text
                except UnicodeDecodeError as error:
                    place = binary.tell() - len(error.object) + error.start
                    raise TraceError(f"cannot read {path}", [
                        Problem(str(path), "", f"byte {place} is not UTF-8", "text")]) from error
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TraceError(f"cannot read {path}", [
            Problem(str(path), "", reason, "a readable, complete file")]) from error


def _gzip(raw: io.BufferedReader) -> io.BufferedReader:
    """Unpack gzip, much at a time: the standard library's unpacking is Python, and text asks for 8 KiB at a time."""
    return io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=raw)), _UNPACKED)


def _zstd(raw: io.BufferedReader, path: str | Path) -> io.BufferedReader:
    """Unpack zstandard with the optional package; its errors become OSError."""
    try:
        import zstandard  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise TraceError(f"cannot read {path}", [Problem(
            str(path), "", "zstandard compression without the package zstandard", "gzip or plain text",
            "pip install 'kvsim[traces]'")]) from None
    return io.BufferedReader(cast(io.RawIOBase, _ZstdFile(zstandard, raw)))


class _ZstdFile(io.RawIOBase):
    """A zstandard stream that fails when it is damaged or ends too early."""

    def __init__(self, zstandard: Any, raw: io.BufferedReader) -> None:
        self._errors, self._make = zstandard.ZstdError, zstandard.ZstdDecompressor().decompressobj
        self._raw, self._frame = raw, None
        self._packed = self._ready = b""
        self._given = 0

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with unpacked bytes; 0 at the end."""
        while not self._ready:
            packed = self._packed or self._raw.read(1 << 17)
            if packed:
                self._unpack(packed)
            elif self._frame is not None:
                raise EOFError("zstandard data ends too early")
            else:
                return 0
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        self._given += size
        return size

    def tell(self) -> int:
        """Unpacked bytes given so far."""
        return self._given

    def _unpack(self, packed: bytes) -> None:
        """Unpack some bytes; a file may consist of several frames."""
        frame = self._frame or self._make()
        try:
            self._ready = frame.decompress(packed)
        except self._errors as error:
            raise OSError(str(error)) from error
        self._packed, self._frame = (frame.unused_data, None) if frame.eof else (b"", frame)


def is_parquet(path: str | Path) -> bool:
    """Whether a file begins like Parquet."""
    try:
        with open(path, "rb") as file:
            return file.read(4) == _PARQUET
    except OSError as error:
        raise TraceError(f"cannot read {path}", [
            Problem(str(path), "", error.strerror or "unreadable", "a readable file")]) from error


def head_of(path: str | Path, num_lines: int = 5) -> list[str]:
    """First lines of a file that are not empty, at most 4 MiB of each."""
    with open_text(path) as file:
        lines = (file.readline(4 * 2**20) for _ in range(num_lines * 4))
        return list(islice((line for line in lines if line.strip()), num_lines))


def json_rows(path: str | Path) -> Iterator[Row]:
    """Objects of a JSON-lines file, or of a file that is one JSON document (an object or a list of them)."""
    for batch in json_batches(path):
        yield from batch.rows


def json_batches(path: str | Path) -> Iterator[Batch]:
    """`json_rows` in batches, the first row by itself; batches hold little text at a time, however long the file."""
    with open_text(path) as file:
        number, first = next(((n, line) for n, line in enumerate(file, 1) if line.strip()), (0, ""))
        if not first:
            return
        if first.strip() in ("{", "[") or _opens_document(first):
            yield from _document(str(path), first + file.read(_MAX_DOCUMENT))
            return
        yield _json_batch(str(path), number, [first])
        while text := file.read(_BATCH):
            lines = _lines(text, file.readline())
            yield _json_batch(str(path), number + 1, lines)
            number += len(lines)


def _lines(text: str, rest: str) -> list[str]:
    """Lines of a text and the rest of its last one as files have them; the last may be empty at the end of a file."""
    if "\r" in text or "\r" in rest:
        return io.StringIO(text + rest, newline="").readlines()
    *lines, last = text.split("\n")
    return [*lines, last + rest]


def _opens_document(line: str) -> bool:
    """Whether a first line is the beginning of a list, or of an object that goes on in the next line."""
    text = line.strip()
    if text.startswith("["):
        return True
    return text.startswith("{") and not text.endswith("}")


def _document(path: str, text: str) -> Iterator[Batch]:
    try:
        whole = json.loads(text)
    except json.JSONDecodeError as error:
        yield Batch(None, iter([Row(f"{path}:{error.lineno}", None, f"{text[:40].strip()!r} ({error.msg})")]))
        return
    values = cast("list[Any]", whole) if isinstance(whole, list) else [whole]
    for k in range(0, len(values), _ROWS):
        yield _elements(path, k + 1, values[k:k + _ROWS])


def _elements(path: str, first: int, values: list[Any]) -> Batch:
    """Some elements of a list from number `first` on, each of which must be an object."""
    if set(map(type, values)) <= {dict}:
        return _objects(path, range(first, first + len(values)), values)
    return Batch(None, (Row(f"{path}:{number}", row) if isinstance(row, dict) else
                        Row(f"{path}:{number}", None, repr(row)[:40]) for number, row in enumerate(values, first)))


def _json_batch(path: str, first: int, lines: list[str]) -> Batch:
    """Rows of several lines from line `first` on, each of which must be an object of its own or empty."""
    numbers: Sequence[int] = range(first, first + len(lines))
    if not all(map(str.strip, lines)):
        numbers = [n for n, line in zip(numbers, lines, strict=True) if line.strip()]
        lines = [line for line in lines if line.strip()]
    try:
        values = cast("list[Any]", json.loads(f"[{','.join(lines)}]"))
    except json.JSONDecodeError:
        values = []
    if len(values) == len(lines) and set(map(type, values)) <= {dict}:
        return _objects(path, numbers, values)
    return Batch(None, map(partial(_json_row, path), numbers, lines))


def _objects(path: str, numbers: Iterable[int], values: list[dict[str, Any]]) -> Batch:
    return Batch(values, map(Row, (f"{path}:{number}" for number in numbers), values))


def _json_row(path: str, number: int, line: str) -> Row:
    where = f"{path}:{number}"
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        return Row(where, None, f"{line[:40].strip()!r} ({error.msg})")
    if isinstance(row, dict):
        return Row(where, cast("dict[str, Any]", row))
    return Row(where, None, line[:40].strip())


def header_of(line: str) -> list[str]:
    """Names of the columns in the first line of a CSV file.

    >>> header_of("time;in;out")
    ['time', 'in', 'out']
    """
    return [name.strip() for name in next(csv.reader([line], delimiter=_delimiter(line)), list[str]())]


def _delimiter(header: str) -> str:
    """What stands between the columns: a comma, or what spreadsheets write instead."""
    return max(",;\t|", key=header.count)


def csv_rows(path: str | Path) -> Iterator[Row]:
    """Rows of a CSV file with a header."""
    with open_text(path) as file:
        before, line = 1, file.readline()
        while line and not line.strip():
            before, line = before + 1, file.readline()
        header = header_of(line)
        reader = csv.reader(file, delimiter=_delimiter(line))
        accepted = f"{len(header)} fields"
        try:
            for cells in reader:
                where = f"{path}:{before + reader.line_num}"
                if len(cells) == len(header):
                    yield Row(where, dict(zip(header, cells, strict=True)))
                elif cells:
                    yield Row(where, None, f"{len(cells)} fields", accepted)
        except csv.Error as error:
            raise TraceError(f"cannot read {path}", [
                Problem(f"{path}:{before + reader.line_num}", "", str(error), "CSV")]) from error
