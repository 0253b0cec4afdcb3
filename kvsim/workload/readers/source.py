"""Files as rows: plain, gzip or zstandard; JSON lines, one JSON document, or CSV; read as a stream."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO, cast

from kvsim.errors import Problem, TraceError

_GZIP, _ZSTD, _PARQUET = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1"
_MAX_DOCUMENT = 512 * 2**20
"""Characters of a file that is one JSON document: such a file cannot be read as a stream."""


_BATCH = 1 << 14
"""Characters of JSON that are parsed at once: a call a line costs as much as a short line itself."""


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
            binary = cast(io.BufferedReader, gzip.GzipFile(fileobj=raw) if head.startswith(_GZIP) else
                          _zstd(raw, path) if head == _ZSTD else raw)
            with io.TextIOWrapper(binary, encoding="utf-8-sig", newline="") as text:
                yield text
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TraceError(f"cannot read {path}", [
            Problem(str(path), "", reason, "a readable, complete file")]) from error
    except UnicodeDecodeError as error:
        raise TraceError(f"cannot read {path}", [
            Problem(str(path), "", f"byte {error.start} is not UTF-8", "text")]) from error


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
        return size

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
    with open_text(path) as file:
        numbered = ((n, line) for n, line in enumerate(file, 1) if line.strip())
        first = next(numbered, None)
        if first is None:
            return
        if first[1].strip() in ("{", "[") or _opens_document(first[1]):
            yield from _document(path, first[1] + file.read(_MAX_DOCUMENT))
            return
        where = str(path)
        yield _json_row(where, *first)
        batch: list[tuple[int, str]] = []
        size = 0
        for item in numbered:
            batch.append(item)
            size += len(item[1])
            if size >= _BATCH:
                yield from _json_batch(where, batch)
                batch, size = [], 0
        yield from _json_batch(where, batch)


def _opens_document(line: str) -> bool:
    """Whether a first line is the beginning of a list, or of an object that goes on in the next line."""
    text = line.strip()
    if text.startswith("["):
        return True
    return text.startswith("{") and not text.endswith("}")


def _document(path: str | Path, text: str) -> Iterator[Row]:
    try:
        whole = json.loads(text)
    except json.JSONDecodeError as error:
        yield Row(f"{path}:{error.lineno}", None, f"{text[:40].strip()!r} ({error.msg})")
        return
    rows = cast("list[Any]", whole) if isinstance(whole, list) else [whole]
    for number, row in enumerate(rows, 1):
        if isinstance(row, dict):
            yield Row(f"{path}:{number}", cast("dict[str, Any]", row))
        else:
            yield Row(f"{path}:{number}", None, repr(row)[:40])


def _json_batch(path: str, batch: list[tuple[int, str]]) -> Iterator[Row]:
    """Rows of several lines, each of which must be an object of its own."""
    try:
        values = cast("list[Any]", json.loads(f"[{','.join([line for _, line in batch])}]"))
    except json.JSONDecodeError:
        values = []
    if len(values) == len(batch) and set(map(type, values)) <= {dict}:
        for (number, _), value in zip(batch, values, strict=True):
            yield Row(f"{path}:{number}", value)
        return
    for number, line in batch:
        yield _json_row(path, number, line)


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
