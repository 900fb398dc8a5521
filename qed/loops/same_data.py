"""Hashes of a run's data in its events, which decide what may differ when the run is resumed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from qed.config.phases import Settings
from qed.config.plugins import is_users_own
from qed.config.reward_names import parse_reward
from qed.config.user_code import list_files
from qed.data.splits import VALIDATION, LoadedProblems
from qed.errors import UsageError
from qed.loops.material import Material, hash_problems
from qed.loops.ranks import require_same_data
from qed.loops.same_models import require_same_models
from qed.runs.run import Launch, Row, Run, read_lines
from qed.training.parallel import Parallel


def hash_data(
    phases: Sequence[Settings],
    materials: Sequence[Material],
    loaded: LoadedProblems,
    run: Run,
    launch: Launch,
    parallel: Parallel,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Return hashes of a run's problems and user-defined files; for a resumed run, compare them with earlier ones.

    Models that are loaded again are compared too; their hashes are in separate events.

    Args:
        phases: settings of each phase.
        materials: training material of each phase.
        loaded: the loaded problems, including the held-out ones.
        run: the run, whose events are read.
        launch: how the run was started.
        parallel: the ranks, which must all have read the same problems.
        say: prints a warning if held-out problems have changed.

    Raises:
        UsageError: the training problems, a file or a model's weights have changed, and no `--allow-change` allows it.
    """
    fingerprint = hash_problems([problem for each in dict.fromkeys(materials) for problem in each.problems])
    require_same_data(fingerprint, [*loaded.validation, *chain(*loaded.benchmarks.values())], parallel)
    tasks = {**loaded.benchmarks, **({VALIDATION: loaded.validation} if loaded.validation else {})}
    held_out = {name: hash_problems(problems) for name, problems in tasks.items()}
    if launch.resume:
        parallel.run_on_first(lambda: _require_same_problems(fingerprint, run, launch))
    own_files = parallel.run_on_first(lambda: _hash_own_files(phases, run, launch))
    if launch.resume:
        parallel.run_on_first(lambda: _report_other_held_out(held_out, run, say))
    require_same_models(phases, run, launch, parallel)
    hashes = {"fingerprint": fingerprint, "held_out_fingerprints": held_out}
    return {**hashes, **({"own_files": own_files} if own_files else {})}


def _require_same_problems(fingerprint: str, run: Run, launch: Launch) -> None:
    """Refuse to resume a run with different training problems, unless `--allow-change data.*` allows it."""
    before = _read_last_data(run)
    if before and before["fingerprint"] != fingerprint and not _may_change_data(launch):
        raise UsageError(
            f"The training problems have changed since {run.folder} began: a data file, what qed reads from it, or "
            "the set of held-out problems is different. Restore the data, start a new run, or allow the change with "
            "--allow-change data.tasks."
        )


def _report_other_held_out(held_out: Mapping[str, str], run: Run, say: Callable[[str], None]) -> None:
    """Report and record which evaluations of a resumed run have different problems than before; this is allowed."""
    before: dict[str, str] = {}
    for row in _read_data(run):
        before |= row.get("held_out_fingerprints", {})
    changed = [name for name, found in held_out.items() if before.get(name, found) != found]
    if changed:
        run.event("held_out_problems_changed", tasks=changed)
        say(
            f"Warning: the held-out problems of {', '.join(changed)} are not those that {run.folder} was evaluated on "
            "before: a data file, the number of problems, or which prompts fit has changed. Figures before and after "
            "this point cannot be compared, nor used to choose the best checkpoint; to compare, start a new run."
        )


def _hash_own_files(phases: Sequence[Settings], run: Run, launch: Launch) -> dict[str, str]:
    """Return a hash of each user-defined file that affects training, by its name.

    These are user-defined algorithms, rewards, prompts, environments and samplers, and what they import from their
    folders.

    Raises:
        UsageError: the run is resumed, a file has changed, and no `--allow-change data.*` allows it.
    """
    data = [phase.data for phase in phases]
    names = [parse_reward(text).source for each in data for text in each.reward]
    names += [name for each in data for name in (each.prompt, each.environment)]
    names += [name for phase in phases for name in (phase.method, phase.sampling.sampler)]
    files = {
        name if number == 0 else str(file): file
        for name in filter(is_users_own, names)
        for number, file in enumerate(list_files(name))
    }
    hashes = {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in files.items()}
    before = _read_last_data(run).get("own_files", {}) if launch.resume else {}
    changed = [name for name, found in hashes.items() if before.get(name, found) != found]
    if changed and not _may_change_data(launch):
        raise UsageError(
            f"{changed[0]} has changed since {run.folder} began, so the run would mix two versions of it. "
            "Restore the file, start a new run, or allow the change with --allow-change data.reward."
        )
    return hashes


def _read_data(run: Run) -> list[Row]:
    """Return the data events of all attempts at a run."""
    return [row for row in read_lines(run.folder / "events.jsonl") if row["event"] == "data"]


def _read_last_data(run: Run) -> Row:
    """Return the data event of the last attempt at a run; empty if there is none."""
    return (_read_data(run) or [{}])[-1]


def _may_change_data(launch: Launch) -> bool:
    return any("data" in key.split(".") for key in launch.allow_change)
