"""Load benchmarks from the hub or local files, given their splits and their column names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, groupby

from qed.console.progress import report_progress, say_on_stderr
from qed.data.sources import hub, local, schemas
from qed.data.sources.explain import explain_no_problems
from qed.data.sources.fields import SkippedRow, build_problem
from qed.data.sources.hub import HubDataset
from qed.data.sources.rows import Place, Row, Rows
from qed.data.tasks.checking import require_split
from qed.errors import DataError
from qed.types import Problem

Originals = dict[str, list[Row]]  # the rows that were read, by problem id


@dataclass(frozen=True)
class Benchmark:
    """A published set of problems.

    Attributes:
        name: name of the task, and prefix of the problems' ids.
        splits: split names, each with its dataset on the hub.
        columns: qed's column names to the benchmark's, for columns that `schemas` does not know.
        adapt: converts a row to a schema of `schemas` if renaming is not enough; may raise SkippedRow.
        drop: long columns to drop from `meta`.
    """

    name: str
    splits: Mapping[str, HubDataset]
    columns: Mapping[str, str] = field(default_factory=dict)
    adapt: Callable[[Row], Row] | None = None
    drop: tuple[str, ...] = ()

    def load(self, split: str) -> list[Problem]:
        """Load the problems of a split from the hub or its cache."""
        return self.read(split)

    def read(
        self,
        split: str,
        path: str = "",
        mapping: Mapping[str, str] | None = None,
        left_out: Counter[str] | None = None,
        revision: str = "",
        originals: Originals | None = None,
    ) -> list[Problem]:
        """Load the problems of a split, from a local file or folder if one is given.

        Args:
            split: one of `splits`.
            path: a file, or a folder with the layout of the hub's.
            mapping: qed's column names to those of the file.
            left_out: receives counts of skipped rows, by reason.
            revision: hub commit to load instead of the pinned one.
            originals: receives the rows that were read, by problem id.

        Raises:
            UsageError: the split does not exist.
            DataError: the data cannot be loaded, or a row is broken.
        """
        counts = left_out if left_out is not None else Counter()
        if path:
            rows = local.read_rows(path, split, self.splits.get(split))
            problems = build_problems(rows, self.name, mapping, counts, self._adapt_row, originals)
            return self._select_source(problems, split, counts)
        require_split(self.name, split, self.splits)
        place = self.splits[split]
        rows = hub.load_rows(replace(place, revision=revision or place.revision), f"{self.name}:{split}")
        return build_problems(rows, self.name, mapping, counts, self._adapt_row, originals)

    def _select_source(self, problems: list[Problem], split: str, left_out: Counter[str]) -> list[Problem]:
        """Select this benchmark's problems from a file with several benchmarks, such as LUFFY's validation files."""
        sources = {str(problem.meta.get("source", "")) for problem in problems}
        exact = [name for name in (f"{self.name}{split}", f"{self.name}{split[-2:]}", self.name) if name in sources]
        similar = [
            source for source in sources if source and (source.startswith(self.name) or self.name.startswith(source))
        ]
        source = exact[0] if exact else similar[0] if len(similar) == 1 else ""
        if len(sources) == 1 or not source:
            return problems
        kept = [problem for problem in problems if problem.meta.get("source") == source]
        left_out["rows of other benchmarks in the same file"] += len(problems) - len(kept)
        return kept

    def _adapt_row(self, row: Row) -> Row:
        """Rename a row's columns to names that `schemas` knows, and drop long ones."""
        renamed = {ours: row[theirs] for ours, theirs in self.columns.items() if theirs in row}
        kept = {key: row[key] for key in row if key not in self.drop and key not in self.columns.values()}
        return (self.adapt or dict)({**kept, **renamed})


def build_problems(
    rows: Rows,
    prefix: str,
    mapping: Mapping[str, str] | None,
    left_out: Counter[str] | None,
    prepare: Callable[[Row], Row] = dict,
    originals: Originals | None = None,
) -> list[Problem]:
    """Build problems from rows, and fold benchmarks that repeat every row.

    Args:
        rows: rows with their places.
        prefix: prefix of the problems' ids.
        mapping: the user's mapping from qed's column names to those of the file.
        left_out: receives counts of skipped rows, by reason.
        prepare: converts a row to a schema of `schemas`.
        originals: receives the rows by problem id, with columns renamed by `mapping`.

    Raises:
        DataError: a row is broken, or there are rows and none is a problem.
    """
    problems: list[Problem] = []
    seen: list[tuple[Place, Row]] = []
    reasons: Counter[str] = Counter()
    for _, (place, row) in report_progress(rows, say_on_stderr, "Reading", f"rows of {prefix}"):
        original = schemas.rename_columns(row, mapping, place) if mapping else row
        seen = [*seen[:1], (place, original)]
        try:
            prepared = prepare(original)
            problems.append(build_problem(schemas.read_fields(prepared, place), prepared, prefix))
            if originals is not None:
                originals.setdefault(problems[-1].id, []).append(original)
        except SkippedRow as reason:
            reasons[str(reason)] += 1
    if seen and not problems:
        raise DataError(explain_no_problems(seen, schemas.name_schema(seen[0][1]), reasons))
    if left_out is not None:
        left_out.update(reasons)
    return fold_repeats(problems)


def fold_repeats(problems: list[Problem]) -> list[Problem]:
    """Merge the k copies of each problem, with which a benchmark requests k samples, into one with `meta["k"]`.

    Unlike with accidental duplicates, all problems of such a source have the same number of copies. At least two
    problems are required, so that one duplicated row does not count as a benchmark.
    """
    times = Counter(problem.id for problem in problems)
    sources = sorted({(str(problem.meta.get("source", "")), problem.id) for problem in problems})
    repeats: dict[str, int] = {}
    for _, members in groupby(sources, key=lambda pair: pair[0]):
        ids = [identity for _, identity in members]
        if len(ids) > 1 and len({times[identity] for identity in ids}) == 1 and times[ids[0]] > 1:
            repeats.update((identity, times[identity]) for identity in ids)
    folded = {
        problem.id: replace(problem, meta={**problem.meta, "k": repeats[problem.id]})
        for problem in problems
        if problem.id in repeats
    }
    return [folded.pop(p.id, p) for p in problems if p.id in folded or p.id not in repeats]


def number_copies(problems: Sequence[Problem]) -> list[Problem]:
    """Return the problems of a benchmark with unique ids: the copies of ID become ID-2, ID-3 and so on.

    A benchmark may have the same question in several subjects, as MMLU does, and published results count each.
    """
    taken = {problem.id for problem in problems}
    times: Counter[str] = Counter()
    numbered = []
    for problem in problems:
        times[problem.id] += 1
        own = problem.id
        if times[own] > 1:
            own = next(name for number in count(times[own]) if (name := f"{own}-{number}") not in taken)
            taken.add(own)
        numbered.append(replace(problem, id=own))
    return numbered
