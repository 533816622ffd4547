"""Tables of a client's own: CSV, Parquet or npz files, read by the names of their columns."""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import UserError

KINDS = (".csv", ".parquet", ".npz")
MISSING = ("", "na", "n/a", "nan", "null", "none", "?")


@dataclass(frozen=True)
class Column:
    """One column of a file: text, or numbers."""

    file: Path
    name: str
    entries: NDArray[Any]

    def is_missing(self) -> NDArray[np.bool_]:
        """Say which entries are not there."""
        if self.entries.dtype.kind in "biuf":
            return np.isnan(self.entries.astype(np.float64))
        return np.isin(np.char.lower(np.char.strip(self.entries)), MISSING)

    def numbers(self) -> NDArray[np.float64]:
        """Return numbers, NaN where one is missing; refuse anything else."""
        if self.entries.dtype.kind in "biuf":
            return self.entries.astype(np.float64)
        texts = np.where(self.is_missing(), "nan", self.entries)
        try:
            return texts.astype(np.float64)
        except ValueError:
            return np.array([self._number(row, text) for row, text in enumerate(texts)])

    def words(self) -> NDArray[np.str_]:
        """Return what stands in the column, without the blanks around it."""
        return np.char.strip(self.entries.astype(np.str_))

    def refuse(self, row: int, complaint: str) -> UserError:
        """Return the error about one entry; rows are counted from 1, without the header."""
        return UserError(f"{self.file}, row {row + 1}: {self.name} = {str(self.entries[row])!r} {complaint}")

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


def read_columns(file: Path, names: Sequence[str]) -> dict[str, Column]:
    """Return columns of a file by their names."""
    readers = {".csv": _read_csv, ".parquet": _read_parquet, ".npz": _read_npz}
    reader = readers.get(file.suffix.lower())
    if reader is None:
        raise UserError(f"{file}: a table is one of {', '.join(KINDS)}")
    try:
        found = reader(file, names)
    except (OSError, ValueError, zipfile.BadZipFile, csv.Error) as error:
        raise UserError(f"{file} cannot be read: {error}") from None
    lengths = {len(entries) for entries in found.values()}
    if len(lengths) > 1:
        raise UserError(f"{file}: its columns have different lengths")
    return {name: Column(file, name, entries) for name, entries in found.items()}


def _read_csv(file: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    with file.open(newline="", encoding="utf-8-sig") as lines:
        rows = csv.reader(lines)
        header = [name.strip() for name in next(rows, [])]
        places = [_place(file, name, header) for name in names]
        columns: list[list[str]] = [[] for _ in names]
        for number, row in enumerate(rows, 1):
            if not row:
                continue
            if len(row) != len(header):
                raise UserError(f"{file}, row {number}: {len(row)} entries where the header has {len(header)}")
            for column, place in zip(columns, places, strict=True):
                column.append(row[place])
    return {name: np.array(column, dtype=np.str_) for name, column in zip(names, columns, strict=True)}


def _read_npz(file: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    with np.load(file, allow_pickle=False) as arrays:
        found = {name: np.asarray(arrays[header]) for name in names for header in [_named(file, name, arrays.files)]}
    for name, entries in found.items():
        if entries.ndim != 1:
            raise UserError(f"{file}: {name} has {entries.ndim} dimensions; a column has one")
    return found


def _read_parquet(file: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise UserError(f"{file}: Parquet needs pyarrow: pip install 'sparse-proxskip[parquet]'") from None
    try:
        header = parquet.read_schema(file).names
        table = parquet.read_table(file, columns=[_named(file, name, header) for name in names])
    except ArrowException as error:
        raise UserError(f"{file} cannot be read: {error}") from None
    return {name: _plain(table.column(name).to_numpy()) for name in names}


def _plain(entries: NDArray[Any]) -> NDArray[Any]:
    """Return numbers as they are, and whatever else as text, empty where it is missing."""
    if entries.dtype.kind in "biuf":
        return entries
    return np.array(["" if entry is None else str(entry) for entry in entries], dtype=np.str_)


def _place(file: Path, name: str, header: Sequence[str]) -> int:
    return header.index(_named(file, name, header))


def _named(file: Path, name: str, header: Sequence[str]) -> str:
    if name not in header:
        shown = ", ".join(header[:20]) + (", ..." if len(header) > 20 else "")
        raise UserError(f"{file} has no column {name!r}, which the server's schema asks for; it has: {shown}")
    return name
