"""Tables of a client's own: CSV, Parquet or npz files, read by the names of their columns."""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError

KINDS = (".csv", ".parquet", ".npz")
BLANKS = ("", "na", "n/a", "nan", "null", "none", "?")
NUMBERS, TEXTS = "biuf", "U"  # numpy's letters for kinds of arrays

_Found = TypeVar("_Found")
Reader = Callable[[Path], _Found]


@dataclass(frozen=True)
class Column:
    """One column of a file: text, or numbers."""

    file: Path
    name: str
    entries: NDArray[Any]

    def is_blank(self) -> NDArray[np.bool_]:
        """Say which entries are what people write where there is nothing."""
        if self.entries.dtype.kind in NUMBERS:
            return np.isnan(self.entries.astype(np.float64))
        return np.isin(np.char.lower(self.words()), BLANKS)

    def numbers(self) -> NDArray[np.float64]:
        """Return numbers, NaN where one is missing; refuse anything else."""
        if self.entries.dtype.kind in NUMBERS:
            return self.entries.astype(np.float64)
        texts = np.where(self.is_blank(), "nan", self.entries)
        try:
            return texts.astype(np.float64)
        except ValueError:
            return np.array([self._number(row, text) for row, text in enumerate(texts)])

    def words(self) -> NDArray[np.str_]:
        """Return what stands in the column, without the blanks around it."""
        return np.char.strip(self.entries.astype(np.str_))

    def refuse(self, row: int, complaint: str) -> UserError:
        """Return the error about one entry; rows are counted from 1, without the header and empty lines."""
        return UserError(
            f"{self.file}, row {row + 1}: {self.name} = {str(self.entries[row])!r} {complaint}",
            public=f"its data does not fit the schema: column {self.name}, row {row + 1}; its log says more",
        )

    def _number(self, row: int, text: str) -> float:
        try:
            return float(text)
        except ValueError:
            raise self.refuse(row, "is not a number") from None


def table_files(path: Path) -> list[Path]:
    """Return the file itself, or all tables in a folder."""
    files = [path] if path.is_file() else sorted(one for one in path.glob("*") if one.suffix.lower() in KINDS)
    if not files:
        raise UserError(f"{path}: there is no such file, or no {', '.join(KINDS)} file in that folder")
    return files


def column_names(file: Path) -> list[str]:
    """Return the names of all columns of a file."""
    return _read(file, {".csv": _csv_header, ".parquet": _parquet_header, ".npz": _npz_header})


def read_columns(file: Path, names: Sequence[str]) -> dict[str, Column]:
    """Return columns of a file by their names."""
    readers: dict[str, Reader[dict[str, NDArray[Any]]]] = {
        ".csv": partial(_read_csv, names=names),
        ".parquet": partial(_read_parquet, names=names),
        ".npz": partial(_read_npz, names=names),
    }
    found = _read(file, readers)
    lengths = {len(entries) for entries in found.values()}
    if len(lengths) > 1:
        raise UserError(f"{file}: its columns have different lengths")
    if not lengths or 0 in lengths:
        raise UserError(f"{file} has no rows")
    return {name: Column(file, name, entries) for name, entries in found.items()}


def _read(file: Path, readers: Mapping[str, Reader[_Found]]) -> _Found:
    """Read a file by the reader of its kind."""
    reader = readers.get(file.suffix.lower())
    if reader is None:
        raise UserError(f"{file}: a table is one of {', '.join(KINDS)}")
    try:
        return reader(file)
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, csv.Error) as error:
        raise UserError(f"{file} cannot be read: {error}") from None


def _csv_header(file: Path) -> list[str]:
    with file.open(newline="", encoding="utf-8-sig") as lines:
        return _first_row(csv.reader(lines))


def _npz_header(file: Path) -> list[str]:
    with np.load(file, allow_pickle=False) as arrays:
        return list(arrays.files)


def _parquet_header(file: Path) -> list[str]:
    with _parquet(file) as parquet:
        return list(parquet.read_schema(file).names)


def _first_row(rows: Iterator[list[str]]) -> list[str]:
    return [name.strip() for name in next(rows, [])]


def _read_csv(file: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    with file.open(newline="", encoding="utf-8-sig") as lines:
        rows = csv.reader(lines)
        header = _first_row(rows)
        places = [_place(file, name, header) for name in names]
        columns: list[list[str]] = [[] for _ in names]
        for number, row in enumerate(rows, 2):
            if not row:
                continue
            if len(row) != len(header):
                raise UserError(f"{file}, line {number}: {len(row)} entries where the header has {len(header)}")
            for column, place in zip(columns, places, strict=True):
                column.append(row[place])
    return {name: np.array(column, dtype=np.str_) for name, column in zip(names, columns, strict=True)}


def _read_npz(file: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    with np.load(file, allow_pickle=False) as arrays:
        found = {name: np.asarray(arrays[header]) for name in names for header in [_named(file, name, arrays.files)]}
    for name, entries in found.items():
        if entries.ndim != 1 or entries.dtype.kind not in NUMBERS + TEXTS:
            raise UserError(
                f"{file}: {name} is {entries.dtype} of {entries.ndim} dimensions; a column is numbers or text"
            )
    return found


@contextmanager
def _parquet(file: Path) -> Iterator[Any]:
    """Give pyarrow's module to read a file with."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise UserError(f"{file}: Parquet needs pyarrow: pip install 'sparse-proxskip[parquet]'") from None
    try:
        yield parquet
    except ArrowException as error:
        raise UserError(f"{file} cannot be read: {error}") from None


def _read_parquet(file: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    with _parquet(file) as parquet:
        header = parquet.read_schema(file).names
        table = parquet.read_table(file, columns=[_named(file, name, header) for name in names])
    from pyarrow import types

    columns = {name: table.column(name) for name in names}
    for name, column in columns.items():
        if types.is_dictionary(column.type):  # of which numpy would get another value in place of what is missing
            columns[name] = column.cast(column.type.value_type)
    return {name: _plain(column.to_numpy()) for name, column in columns.items()}


def _plain(entries: NDArray[Any]) -> NDArray[Any]:
    """Return numbers as they are, and whatever else as text, empty where it is missing."""
    if entries.dtype.kind in NUMBERS:
        return entries
    return np.array(["" if entry is None else str(entry) for entry in entries], dtype=np.str_)


def _place(file: Path, name: str, header: Sequence[str]) -> int:
    return header.index(_named(file, name, header))


def _named(file: Path, name: str, header: Sequence[str]) -> str:
    if name not in header:
        shown = ", ".join(header[:20]) + (", ..." if len(header) > 20 else "")
        raise UserError(
            f"{file} has no column {name!r}, which the server's schema asks for; it has: {shown}",
            public=f"its data does not fit the schema: there is no column {name}",
        )
    if header.count(name) > 1:
        raise UserError(f"{file} has {header.count(name)} columns {name!r}")
    return name
