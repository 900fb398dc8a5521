"""A benchmark as a table: where its splits lie on the hub, and what is odd about its columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby

from qed.data.sources import hub, local, schemas
from qed.data.sources.fields import SkippedRow, build_problem
from qed.data.sources.hub import HubDataset
from qed.data.sources.rows import Row, Rows
from qed.errors import UsageError, suggest_nearest
from qed.types import Problem

Originals = dict[str, list[Row]]  # the rows that were read, by the id of their problem


@dataclass(frozen=True)
class Benchmark:
    """Problems that are published under a name.

    Attributes:
        name: of the leaf; problems' ids begin with it.
        splits: our names for its splits, and where each lies on the hub.
        columns: our column names for those of its own that are not known by themselves, where a row has them.
        adapt: makes a row one that `schemas` knows, where renaming is not enough; it may raise LeftOut.
        drop: columns that are not kept in `meta`, because they are long.
    """

    name: str
    splits: Mapping[str, HubDataset]
    columns: Mapping[str, str] = field(default_factory=dict)
    adapt: Callable[[Row], Row] | None = None
    drop: tuple[str, ...] = ()

    def load(self, split: str) -> list[Problem]:
        """The problems of a split, from the hub or its cache."""
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
        """The problems of a split, from a local file or folder where one is given.

        Args:
            split: one of `splits`.
            path: a file, or a folder laid out like the hub's.
            mapping: our names for columns of the file.
            left_out: counts rows that are no problem, by their reason.
            revision: the hub's commit to load in place of the pinned one.
            originals: gets the rows that were read, by the id of their problem.

        Raises:
            UsageError: there is no such split.
            DataError: the data cannot be had, or a row is broken.
        """
        place = self.splits.get(split)
        if place is None and not path:
            known = ", ".join(self.splits)
            raise UsageError(
                f"{self.name} has no split '{split}'.{suggest_nearest(split, self.splits)} There are: {known}."
            )
        if path:
            rows = local.read_rows(path, split, place)
        elif place is not None:
            rows = hub.load_rows(replace(place, revision=revision or place.revision), f"{self.name}:{split}")
        counts = left_out if left_out is not None else Counter()
        found = build_problems(rows, self.name, mapping or {}, counts, self._adapt_row, originals)
        return self._select_own_rows(found, split, counts) if path else found

    def _select_own_rows(self, found: list[Problem], split: str, left_out: Counter[str]) -> list[Problem]:
        """Of a file that joins several benchmarks, as LUFFY's validation files do, the rows of this one."""
        sources = {str(one.meta.get("source", "")) for one in found}
        exact = [name for name in (f"{self.name}{split}", f"{self.name}{split[-2:]}", self.name) if name in sources]
        alike = [
            source for source in sources if source and (source.startswith(self.name) or self.name.startswith(source))
        ]
        own = exact[0] if exact else alike[0] if len(alike) == 1 else ""
        if len(sources) == 1 or not own:
            return found
        kept = [one for one in found if one.meta.get("source") == own]
        left_out["rows of other benchmarks in the same file"] += len(found) - len(kept)
        return kept

    def _adapt_row(self, row: Row) -> Row:
        """A row with its odd columns under the names that `schemas` knows."""
        known = {ours: row[theirs] for ours, theirs in self.columns.items() if theirs in row}
        kept = {key: row[key] for key in row if key not in self.drop and key not in self.columns.values()}
        return (self.adapt or dict)({**kept, **known})


def build_problems(
    rows: Rows,
    prefix: str,
    mapping: Mapping[str, str],
    left_out: Counter[str],
    prepare: Callable[[Row], Row] = dict,
    originals: Originals | None = None,
) -> list[Problem]:
    """The problems that rows stand for, repeats of a whole benchmark folded.

    Args:
        rows: with their places.
        prefix: of the problems' ids.
        mapping: our names for columns, as a user gave them.
        left_out: counts rows that are no problem, by their reason.
        prepare: makes a row one that `schemas` knows.
        originals: gets the rows as they came, renamed as the user asked, by the id of their problem.
    """
    found = []
    for place, row in rows:
        try:
            original = schemas.rename_columns(row, mapping, place) if mapping else row
            prepared = prepare(original)
            found.append(build_problem(schemas.read_fields(prepared, place), prepared, prefix))
            if originals is not None:
                originals.setdefault(found[-1].id, []).append(original)
        except SkippedRow as reason:
            left_out[str(reason)] += 1
    return fold_repeats(found)


def fold_repeats(found: list[Problem]) -> list[Problem]:
    """Benchmarks that ask for k samples by writing every problem k times, folded into one problem with `meta["k"]`.

    What tells them from rows that happen to stand twice: every problem of a source stands there equally often. That is
    said of at least two problems, so that one row and its copy are no benchmark.
    """
    times = Counter(one.id for one in found)
    sources = sorted({(str(one.meta.get("source", "")), one.id) for one in found})
    repeats: dict[str, int] = {}
    for _, members in groupby(sources, key=lambda pair: pair[0]):
        ids = [identity for _, identity in members]
        if len(ids) > 1 and len({times[identity] for identity in ids}) == 1 and times[ids[0]] > 1:
            repeats.update((identity, times[identity]) for identity in ids)
    kept = {one.id: replace(one, meta={**one.meta, "k": repeats[one.id]}) for one in found if one.id in repeats}
    return [kept.pop(one.id, one) for one in found if one.id in kept or one.id not in repeats]
