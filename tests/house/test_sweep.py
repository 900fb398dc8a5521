"""Sweeps: their order, folders, table and failures, with the recipe replaced by a small stand-in."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qed.errors import Diverged
from qed.runs.folder import drop_tables

Run = Callable[..., tuple[int, str, str]]
Write = Callable[..., str]


def test_a_sweep_runs_the_product_in_order(run: Run, recipes: Any) -> None:
    recipes.answer = lambda settings: {"reward": settings.learner.lr, "steps": 7, "note": "text", "done": True}
    code, out, _ = run("grpo", "--sweep", "learner.lr=1e-6,5e-7", "--sweep", "seed=0,1", "--out", "runs/s")
    assert code == 0
    assert [(s.learner.lr, s.run.seed, s.run.out) for _, s, _ in recipes.calls] == [
        (1e-6, 0, "runs/s/lr=1e-6,seed=0"),
        (1e-6, 1, "runs/s/lr=1e-6,seed=1"),
        (5e-7, 0, "runs/s/lr=5e-7,seed=0"),
        (5e-7, 1, "runs/s/lr=5e-7,seed=1"),
    ]
    assert {launch.home for _, _, launch in recipes.calls} == {"runs/s"}, "which is what goes on with --resume"
    lines = out.splitlines()
    assert lines[0].split() == ["learner.lr", "run.seed", "reward", "steps", "run"]
    assert lines[4].split() == ["5e-7", "1", "5e-07", "7", "runs/s/lr=5e-7,seed=1"]
    assert len({line.index("runs/s") for line in lines[1:]}) == 1
    table = Path("runs/s/runs.csv").read_text().splitlines()
    assert table[0] == "learner.lr,run.seed,reward,steps,run,error"
    assert table[4] == '5e-7,1,5e-07,7,"runs/s/lr=5e-7,seed=1",'
    assert run("grpo", "--sweep", "learner.lr=1e-6", "--sweep", "seed=1,2", "--out", "runs/s")[0] == 0
    rows = Path("runs/s/runs.csv").read_text().splitlines()
    assert rows[:5] == table, "those of the sweep before stay"
    assert len(rows) == 6
    assert drop_tables(sorted(Path("runs/s").iterdir())) == [Path("runs/s/runs.csv")], "there is nothing else"
    Path("runs/s/lr=1e-6").mkdir()
    assert drop_tables(sorted(Path("runs/s").iterdir())) == [Path("runs/s/lr=1e-6")]


def test_the_table_has_intervals_beside_accuracies(run: Run, recipes: Any) -> None:
    shares = {"accuracy": 0.5, "ci_lo": 0.404, "ci_hi": 0.596, "format": 1.0}
    sampled = {"sampled_accuracy": 0.25, "sampled_ci_lo": 0.2, "sampled_ci_hi": 0.3}
    recipes.answer = lambda settings: {"sums": {**shares, **(sampled if settings.run.seed else {}), "n": 100}}
    code, out, _ = run("grpo", "--sweep", "seed=0,1", "--out", "o")
    assert code == 0
    header, *rows = ([cell for cell in re.split(r"  +", line) if cell] for line in out.splitlines())
    assert header == ["run.seed", "sums.accuracy", "sums.format", "sums.n", "sums.sampled_accuracy", "run"]
    assert rows == [
        ["0", "0.5 [0.404, 0.596]", "1", "100", "o/seed=0"],
        ["1", "0.5 [0.404, 0.596]", "1", "100", "0.25 [0.2, 0.3]", "o/seed=1"],
    ]
    assert "sums.accuracy,sums.ci_lo,sums.ci_hi,sums.format" in Path("o/runs.csv").read_text()


@pytest.mark.parametrize("other", ["name,x\nmine,1\n", "seed,run,error\n0,o/seed=0,,more\n", "seed;run;error\n"])
def test_another_table_of_this_name_is_left_alone(run: Run, recipes: Any, other: str) -> None:
    Path("o").mkdir()
    Path("o/runs.csv").write_text(other)
    code, _, err = run("grpo", "--sweep", "seed=0,1", "--out", "o")
    assert (code, recipes.calls) == (2, [])
    assert "o/runs.csv is not the table of a sweep. Move it away" in err
    assert Path("o/runs.csv").read_text() == other


def test_a_sweep_without_out_makes_a_folder_of_its_own(run: Run, recipes: Any) -> None:
    run("expert-iteration", "--sweep", "seed=0,1")
    folders = [Path(settings.run.out) for _, settings, _ in recipes.calls]
    assert len({folder.parent for folder in folders}) == 1
    assert re.fullmatch(r"runs/sweep-expert_iteration-\d{8}-\d{6}", str(folders[0].parent))


def test_folders_of_a_sweep_are_safe_and_distinct(run: Run, recipes: Any) -> None:
    run("grpo", "--out=o", "--sweep=model=a/b:c,a_b_c", '--sweep=learner.betas=[[0.9, 0.95], "0.9,0.99"]')
    assert [settings.run.out for _, settings, _ in recipes.calls] == [
        "o/name=a_b_c,betas=0.9_0.95",
        "o/name=a_b_c,betas=0.9_0.99",
        "o/name=a_b_c,betas=0.9_0.95-2",
        "o/name=a_b_c,betas=0.9_0.99-2",
    ]
    assert recipes.calls[1][1].learner.betas == (0.9, 0.99)
    recipes.calls.clear()
    run("pipeline", "--out=o", "--sweep=sft.learner.lr=1", "--sweep=rl.learner.lr=2", "--sweep=steps=3")
    [(_, settings, _)] = recipes.calls
    assert settings.run.out == "o/sft.learner.lr=1,rl.learner.lr=2,steps=3"
    assert (settings.sft.learner.steps, settings.rl.learner.steps) == (3, 3)


def test_a_swept_list_replaces_that_of_the_command_line(run: Run, recipes: Any) -> None:
    assert run("grpo", "--tasks", "gsm8k", "--lr=1", "--sweep=data.tasks=math,arithmetic", "--sweep=lr=2")[0] == 0
    assert [(s.data.tasks, s.learner.lr) for _, s, _ in recipes.calls] == [(("math",), 2), (("arithmetic",), 2)]
    assert "--tasks is given twice" in run("grpo", "--tasks=gsm8k", "--tasks=math", "--sweep=lr=1,2")[2]


def test_one_failure_in_a_sweep_does_not_stop_the_others(run: Run, recipes: Any) -> None:
    def answer(settings: Any) -> dict[str, Any]:
        if settings.run.seed == 1:
            raise Diverged("The loss is not finite.")
        return {"reward": 1.0}

    recipes.answer = answer
    code, out, err = run("grpo", "--sweep", "seed=0,1,2", "--out", "o")
    assert (code, len(recipes.calls)) == (1, 3)
    assert "error: The loss is not finite." in err
    assert out.splitlines()[2].split() == ["1", "o/seed=1", "(failed)"]
    code, out, _ = run("grpo", "--sweep", "seed=0,1", "--out", "o", "--json")
    assert code == 1
    assert json.loads(out.splitlines()[-1]) == [
        {"swept": {"run.seed": "0"}, "run": "o/seed=0", "result": {"reward": 1.0}, "error": None},
        {"swept": {"run.seed": "1"}, "run": "o/seed=1", "result": {}, "error": "The loss is not finite."},
    ]


def test_an_unforeseen_failure_does_not_stop_the_others_either(run: Run, recipes: Any) -> None:
    def answer(settings: Any) -> dict[str, Any]:
        if settings.run.seed == 0:
            raise RuntimeError("CUDA out of memory.")
        return {"reward": 1.0}

    recipes.answer = answer
    code, out, err = run("grpo", "--sweep", "seed=0,1", "--out", "o")
    assert (code, len(recipes.calls)) == (1, 2)
    assert "error: RuntimeError: CUDA out of memory. (run again with --debug for the traceback)" in err
    assert "(failed)" in out.splitlines()[1]
    assert "Traceback" in run("grpo", "--sweep", "seed=0,1", "--out", "p", "--debug")[2]


def test_an_interrupt_that_makes_the_clean_up_fail_ends_the_sweep(run: Run, recipes: Any) -> None:
    def answer(settings: Any) -> dict[str, Any]:
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("cannot schedule new futures")

    recipes.answer = answer
    assert run("grpo", "--sweep", "seed=0,1", "--out", "o")[0] == 130
    assert len(recipes.calls) == 1


@pytest.mark.parametrize(
    ("sweep", "reason"),
    [
        (["lrr=1"], "Did you mean 'learner.lr'?"),
        (["lr"], "lacks values"),
        (["lr="], "lacks values"),
        (["out=a,b"], "a folder for every run"),
        (["lr=1", "learner.lr=2"], "twice"),
        (["seed=1,x"], "run.seed must be a whole number"),
        (["algorithm.clip_low=0.1,7"], "must lie in [0, 1]"),
    ],
)
def test_a_mistake_in_a_sweep_is_found_before_anything_runs(
    run: Run, recipes: Any, sweep: list[str], reason: str
) -> None:
    for arguments in (["grpo"], ["config", "validate", "grpo"]):
        code, _, err = run(*arguments, *[f"--sweep={one}" for one in sweep])
        assert (code, recipes.calls) == (2, [])
        assert reason in err


def test_a_sweep_goes_on_with_the_runs_that_it_began(run: Run, recipes: Any, write: Write) -> None:
    write("method: grpo", "o/seed=0/settings.yaml")
    run("grpo", "--sweep=seed=0,1", "--out=o", "--resume")
    assert [launch and launch.resume for _, _, launch in recipes.calls] == [True, False]
    assert "add --out DIR" in run("grpo", "--sweep=seed=0,1", "--resume")[2]
