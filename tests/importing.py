"""Import a configuration of another system as `qed config import` does, and resolve the result."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qed.config.imports.convert import Imported, convert_options, load_system
from qed.config.imports.read import read_options
from qed.config.keys import list_values
from qed.config.resolve import resolve_settings


@dataclass(frozen=True)
class Result:
    """An import, its settings as qed's own checks let them pass, and the values of all of them by key."""

    imported: Imported
    settings: Any
    values: dict[str, Any]

    @property
    def notes(self) -> dict[str, str]:
        """The notes of settings without an equivalent, by their names."""
        lost = [row for row in self.imported.rows if not row.ours]
        return {name: row.note for row in lost for name in row.theirs.split(",")}

    @property
    def told(self) -> set[str]:
        """The names of all settings that the table says something about."""
        return {name for row in self.imported.rows for name in row.theirs.split(",")}


def import_files(folder: Path, system: str, files: list[Path], *arguments: str) -> Result:
    """Import files and arguments of a system; the configuration is written into a folder."""
    imported = convert_options(load_system(system), read_options(files, arguments))
    out = folder / "imported.yaml"
    out.write_text(imported.text)
    settings = resolve_settings(imported.command, [str(out)]).settings
    return Result(imported, settings, list_values(settings))
