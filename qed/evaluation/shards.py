"""Shards: parts of an evaluation or a grading that separate processes compute, on any machines, to be merged later.

The work is divided into numbered units, independent of the number of shards; shard I of N has every N-th unit. A
shard's file is JSON Lines: a header that describes the whole work, a line with the rows of each unit, and a checksum.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qed.errors import DataError, UsageError
from qed.evaluation.store import append_rows, list_differences, read_whole_rows
from qed.runs.run import Row, write_whole
from qed.runs.step_file import encode_line, encode_lines

UNFINISHED = ".unfinished"
MAX_SHARDS = 1_000_000
MAX_NAMED = 10  # shards listed in a message


@dataclass(frozen=True)
class Shard:
    """One of `count` shares of the same work, numbered from 1."""

    number: int
    count: int

    def has(self, unit: int) -> bool:
        """Return whether a unit of the work, numbered from 0, belongs to this shard."""
        return unit % self.count == self.number - 1

    def list_units(self, total: int) -> range:
        """List the units of this shard, of `total` units."""
        return range(self.number - 1, total, self.count)

    @property
    def file(self) -> str:
        """Return the name of its file; names sort by shard number."""
        return f"shard-{self.number:0{len(str(self.count))}d}-of-{self.count}.jsonl"

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def parse_shard(text: str) -> Shard:
    """Parse I/N, such as 2/3.

    Raises:
        UsageError: it is not of this form, or I is not between 1 and N.
    """
    match = re.fullmatch(r"(\d{1,7})/(\d{1,7})", text.strip(), re.ASCII)
    shard = Shard(int(match[1]), int(match[2])) if match else Shard(0, 0)
    if not 1 <= shard.number <= shard.count <= MAX_SHARDS:
        raise UsageError(f"--shard takes I/N, such as 2/3 for the second of three shards, not '{text}'.")
    return shard


def find_shard_folder(out: Path, is_file: bool | None = None) -> Path:
    """Return the folder of the shards of an evaluation's folder, or of a file of verdicts.

    Args:
        out: the folder or the file.
        is_file: whether `out` is a file; None to decide by what exists.
    """
    inside = out / "shards"
    if is_file is None:
        is_file = not inside.is_dir()
    return out.parent / f"{out.name}.shards" if is_file else inside


class ShardFile:
    """The file of a shard: finished units are on disk at once, and an interrupted shard keeps them.

    `units` has the rows of the units in the file, and `is_finished` says whether these are all of the shard's.

    Args:
        folder: folder of the shards.
        shard: which shard.
        whole: everything that determines the result of the whole work, in a form for JSON.
        overwrite: start again, whatever exists.
        alone: write unfinished units to a file name unique to this process, because another one may compute the same
            shard at the same time: a cluster restarts the task of a lost node, and that node may still be running.

    Raises:
        UsageError: the folder has a shard of other work.
        DataError: the file is damaged.
    """

    def __init__(
        self, folder: Path, shard: Shard, whole: Mapping[str, Any], overwrite: bool = False, alone: bool = False
    ) -> None:
        self.path = folder / shard.file
        self.part = folder / f".{shard.file}{f'.{secrets.token_hex(4)}' if alone else ''}{UNFINISHED}"
        self.units: dict[int, list[Row]] = {}
        is_started = not overwrite and not is_made(self.path, shard, whole) and is_made(self.part, shard, whole)
        if is_started:
            self._resume()
        self.is_finished = not overwrite and self.path.exists()
        if self.is_finished:
            self.units = read_shard(self.path).units
        elif not is_started:
            self.path.unlink(missing_ok=True)
            write_whole(self.part, encode_lines(encode_line(build_header(shard, whole))))

    def _resume(self) -> None:
        """Read the finished units."""
        rows = read_whole_rows(self.part)[1:]
        if rows and "end" in rows[-1]:
            self.part.replace(self.path)
        else:
            self.units = {row["unit"]: row["rows"] for row in rows}

    def add(self, units: Mapping[int, Sequence[Row]]) -> None:
        """Append finished units.

        Raises:
            QedError: the disk is full; none of them is kept.
        """
        if units:
            append_rows(self.part, [{"unit": unit, "rows": list(rows)} for unit, rows in units.items()])
            self.units |= {unit: list(rows) for unit, rows in units.items()}

    def finish(self, total: int, info: Mapping[str, Any]) -> None:
        """Give the file its final name; `total` counts the units of all shards, `info` is about this shard only."""
        digest = hashlib.sha256(self.part.read_bytes()).hexdigest()
        append_rows(self.part, [{"end": len(self.units), "total": total, "info": info, "sha256": digest}])
        self.part.replace(self.path)
        self.is_finished = True


def build_header(shard: Shard, whole: Mapping[str, Any]) -> Row:
    """Build the first line of a shard's file, equal to what is read back."""
    header: Row = json.loads(json.dumps({"shard": [shard.number, shard.count], "whole": whole}))
    return header


def is_made(path: Path, shard: Shard, whole: Mapping[str, Any]) -> bool:
    """Return whether a file holds this shard; False if there is none, or a killed process left it without a header.

    Raises:
        UsageError: it is a shard of other work.
    """
    there, here = read_header(path), build_header(shard, whole)
    if there is not None and there != here:
        raise UsageError(
            f"{path} is a shard with other settings: {compare_wholes(there['whole'], here['whole'])}. Use another "
            "--out, or start again with --overwrite."
        )
    return there is not None


@dataclass(frozen=True)
class Part:
    """A complete shard as read from its file; see `ShardFile` for the fields."""

    path: Path
    shard: Shard
    whole: Row
    total: int
    info: Row
    units: dict[int, list[Row]]


@dataclass(frozen=True)
class Joined:
    """All shards merged: the description of the whole work, the rows of its units in order, and each shard's info."""

    whole: Row
    units: list[list[Row]]
    infos: list[Row]


def read_header(path: Path) -> Row | None:
    """Read the first line of a shard's file; return None if it is not one."""
    try:
        with path.open(encoding="utf-8") as file:
            line = file.readline()
        header = json.loads(line) if line.endswith("\n") else None
    except (ValueError, FileNotFoundError):
        return None
    return header if isinstance(header, dict) and {"shard", "whole"} <= header.keys() else None


def read_shard(path: Path) -> Part:
    """Read and verify a finished shard.

    Raises:
        DataError: it is not a shard, incomplete, or damaged.
    """
    content = path.read_bytes()
    start = content[:-1].rfind(b"\n") + 1
    try:
        end = json.loads(content[start:])
        damaged = not content.endswith(b"\n") or end["sha256"] != hashlib.sha256(content[:start]).hexdigest()
    except (ValueError, KeyError, TypeError):
        damaged = True
    if damaged:
        raise DataError(
            f"{path} is not a complete shard: its checksum is missing or does not match. Copy it again from where it "
            "was made, or delete it and run the shard again."
        )
    header, *lines = (json.loads(line) for line in content[:start].split(b"\n")[:-1])
    units = {line["unit"]: line["rows"] for line in lines}
    return Part(path, Shard(*header["shard"]), header["whole"], end["total"], end["info"], units)


def find_shards(places: Sequence[Path]) -> list[Path]:
    """List the files of shards, given as files or as folders that hold them.

    Raises:
        DataError: a place does not exist, or holds none.
    """
    found: list[Path] = []
    for place in places:
        folder = place.is_dir()  # False also for a name that no file can have, in which nothing can be searched
        files = sorted(place.rglob("shard-*-of-*.jsonl")) if folder else [place] * place.is_file()
        if not files:
            started = sorted(place.rglob(f".shard-*{UNFINISHED}")) if folder else []
            hint = f" {started[0]} is not finished: run its command again to resume it." if started else ""
            raise DataError(f"{place} holds no finished shard, a file such as shard-1-of-3.jsonl.{hint}")
        found += files
    return list({file.resolve(): file for file in found}.values())


def join_shards(files: Sequence[Path]) -> Joined:
    """Read all shards of an evaluation or a grading.

    Raises:
        DataError: one is missing, duplicated, damaged, or of other work.
    """
    parts = [read_shard(file) for file in files]
    first = parts[0]
    by_number: dict[int, Part] = {}
    for part in parts:
        if part.whole != first.whole or part.total != first.total:
            raise DataError(
                f"{part.path} and {first.path} are not shards of the same work: "
                f"{compare_wholes(first.whole, part.whole)}. Name those of one command only."
            )
        if part.shard.count != first.shard.count:
            raise DataError(
                f"{part.path} is shard {part.shard}, and {first.path} is shard {first.shard}: name only shards with "
                "the same N."
            )
        if part.shard.number in by_number:
            raise DataError(
                f"Shard {part.shard} is given twice: {by_number[part.shard.number].path} and {part.path}. Name one."
            )
        by_number[part.shard.number] = part
    _require_all(by_number, first)
    units = {unit: rows for part in parts for unit, rows in part.units.items()}
    ordered = [by_number[number] for number in sorted(by_number)]
    return Joined(first.whole, [units[unit] for unit in range(first.total)], [each.info for each in ordered])


def _require_all(by_number: Mapping[int, Part], first: Part) -> None:
    """Raise if a shard is missing or lacks units."""
    missing = [str(Shard(n, first.shard.count)) for n in range(1, first.shard.count + 1) if n not in by_number]
    if missing:
        more = ", …" if len(missing) > MAX_NAMED else ""
        raise DataError(
            f"Of {first.shard.count} shards {len(missing)} {'is' if len(missing) == 1 else 'are'} missing: "
            f"{', '.join(missing[:MAX_NAMED])}{more}. Run or resume each with the same command and --shard I/N, "
            "and name the folders of all."
        )
    for part in by_number.values():
        if set(part.units) != set(part.shard.list_units(part.total)):
            raise DataError(f"{part.path} does not hold the units of shard {part.shard}; run this shard again.")


def compare_wholes(there: Row, here: Row) -> str:
    """Describe how the work of two shards differs."""
    return list_differences(dict(_flatten(there)), dict(_flatten(here))) or "their data have different numbers of rows"


def _flatten(value: Row, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested settings under shortened dotted names; a long list counts as one value."""
    for name, inner in value.items():
        if isinstance(inner, dict):
            yield from _flatten(inner, f"{prefix}{name}." if name not in ("tasks", "settings") else prefix)
        else:
            text = json.dumps(inner, ensure_ascii=False)
            short = text if len(text) <= 60 else f"{text[:40]}… ({hashlib.sha256(text.encode()).hexdigest()[:8]})"
            yield f"{prefix}{name}", inner if len(text) <= 60 else short
