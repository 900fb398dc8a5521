"""The run folders that the viewer shows, each under a key, and the only way from a request to one of their files."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from qed.errors import suggest_nearest
from qed.viewer.memo import FileMemo
from qed.viewer.params import Refused

RESCAN_SECONDS = 2.0
DEEPEST = 4  # levels below a given folder
MOST_FOLDERS = 20_000  # that a scan visits
MOST_ENTRIES = 20_000  # of a folder
MOST_REMEMBERED = 5_000  # values of `memo`, such as parts of cards
# Folders of a run that contain no runs.
PARTS = frozenset({"checkpoints", "rollouts", "eval", "logs", "final", "node_modules", "__pycache__"})


@dataclass(frozen=True)
class RunPlace:
    """A run's folder, with links resolved, and its key."""

    key: str
    folder: Path

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.folder.name

    def is_there(self) -> bool:
        """Return whether the folder still exists, and its path has no new links."""
        return self.folder.is_dir() and os.path.realpath(self.folder) == str(self.folder)

    def locate(self, *parts: str) -> Path:
        """Return the path of a file or folder of the run, which need not exist, with links resolved.

        Args:
            parts: the parts of the path below the run's folder.

        Raises:
            Refused: the path or a link in it leads out of the run's folder, or to something that is not a file.
        """
        for part in parts:
            if "\0" in part or "\\" in part or part.startswith("/") or ".." in PurePosixPath(part).parts:
                raise Refused(403, f"'{part[:80]}' is not a path within a run.")
        try:
            home = self.folder.resolve(strict=True)
            if home != self.folder:
                raise Refused(403, f"The folder of the run {self.key} has become a link since the viewer found it.")
            path = home.joinpath(*parts).resolve()
            kind = stat.S_IFMT(path.stat().st_mode) if path.exists() else stat.S_IFREG
        except (OSError, RuntimeError, ValueError) as error:
            if not self.folder.is_dir():
                raise Refused(410, f"The run {self.key} is gone: its folder was deleted or moved.") from error
            raise Refused(403, f"'{'/'.join(parts)[:80]}' is not a path within a run.") from error
        if not path.is_relative_to(home):
            raise Refused(403, f"'{'/'.join(parts)[:80]}' is a link that leads out of the run's folder.")
        if kind not in (stat.S_IFREG, stat.S_IFDIR):
            raise Refused(403, f"'{'/'.join(parts)[:80]}' is neither a file nor a folder.")
        return path

    def list_names(self, *parts: str) -> list[str]:
        """List the names in a folder of the run in order; none if there is no such folder.

        Each may be a link that leads out of the run: pass it to `locate` before you open it.
        """
        folder = self.locate(*parts)
        names: list[str] = []
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                names.append(entry.name)
                if len(names) >= MOST_ENTRIES:
                    break
        return sorted(names)


@dataclass(frozen=True)
class Problem:
    """A folder that is not shown, and why."""

    folder: str
    reason: str


class Library:
    """The runs at and below some paths. It can be used from several threads.

    Args:
        places: runs, or folders of runs.
        cache: a user folder for what the viewer computes about runs, because it never writes to run folders.
    """

    def __init__(self, places: Sequence[Path], cache: Path) -> None:
        self.places = [Path(os.path.abspath(place)) for place in places]
        self.cache = cache
        self.memo = FileMemo(MOST_REMEMBERED)
        self._lock = threading.Lock()
        self._keys: dict[Path, str] = {}  # a key stays with its folder, even after other folders are gone
        self._runs: list[RunPlace] = []
        self._problems: list[Problem] = []
        self._scanned = float("-inf")

    def runs(self) -> list[RunPlace]:
        """Return the runs, those of each path by name; look for new ones at most every 2 seconds."""
        with self._lock:
            if time.monotonic() - self._scanned >= RESCAN_SECONDS:
                self._scan()
                self._scanned = time.monotonic()
            return list(self._runs)

    def problems(self) -> list[Problem]:
        """Return the folders that are not shown."""
        self.runs()
        with self._lock:
            return list(self._problems)

    def find(self, key: str) -> RunPlace:
        """Return the run with a key.

        Raises:
            Refused: there is no such run, or its folder is gone.
        """
        with self._lock:
            known = next((run for run in self._runs if run.key == key), None)
        if known is not None and known.is_there():
            return known
        runs = self.runs()
        found = next((run for run in runs if run.key == key), None)
        if found is not None and found.is_there():
            return found
        if found is not None or key in self._keys.values():
            raise Refused(410, f"The run {key[:200]} is gone: its folder was deleted or moved.")
        raise Refused(404, f"There is no run {key[:200]}.{suggest_nearest(key[:200], [run.key for run in runs])}")

    def _scan(self) -> None:
        runs: list[RunPlace] = []
        problems: list[Problem] = []
        seen: set[Path] = set()
        for place in self.places:
            for name, folder in _find_runs(place, problems):
                if folder not in seen:
                    seen.add(folder)
                    runs.append(RunPlace(self._choose_key(folder, name), folder))
        self._runs, self._problems = runs, problems

    def _choose_key(self, folder: Path, name: str) -> str:
        if folder not in self._keys:
            taken, key, number = set(self._keys.values()), name, 1
            while key in taken:
                number += 1
                key = f"{name}~{number}"
            self._keys[folder] = key
        return self._keys[folder]


def is_shown(folder: Path) -> bool:
    """Return whether a folder is that of a run or of `qed evaluate`."""
    if (folder / "settings.yaml").is_file() or (folder / "metrics.jsonl").is_file():
        return True
    with suppress(OSError):
        return any(folder.glob("eval/step_*/summary.json"))
    return False


def has_runs(place: Path) -> bool:
    """Return whether there is a run at or below a path."""
    return next(_find_runs(place, []), None) is not None


def _find_runs(place: Path, problems: list[Problem]) -> Iterator[tuple[str, Path]]:
    """Yield the runs at and below a path, each with the first choice of its key."""
    left = MOST_FOLDERS
    home = place.resolve()
    first = home.name or "/"
    queue = deque([("", place, 0)])
    while queue:
        name, folder, depth = queue.popleft()
        left -= 1
        if left < 0:
            problems.append(Problem(str(place), f"more than {MOST_FOLDERS} folders; the others are not shown"))
            return
        shown = is_shown(folder)
        if shown:
            yield (name or first, folder.resolve())
        prefix = f"{name or first}/" if shown or name else ""
        for inner in _list_folders(folder, home, problems):
            if depth < DEEPEST and not (shown and inner.name in PARTS):
                queue.append((f"{prefix}{inner.name}", inner, depth + 1))


def _list_folders(folder: Path, home: Path, problems: list[Problem]) -> list[Path]:
    """List the folders in a folder by name, without links and hidden ones."""
    found: list[Path] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_symlink():
                    path = Path(entry.path)
                    if is_shown(path) and not path.resolve().is_relative_to(home):
                        problems.append(Problem(entry.path, "a link that leads out of the folder; give its target"))
                elif entry.is_dir(follow_symlinks=False):
                    found.append(Path(entry.path))
                if len(found) >= MOST_ENTRIES:
                    break
    except OSError as error:
        problems.append(Problem(str(folder), f"cannot be read: {error.strerror}"))
    return sorted(found)
