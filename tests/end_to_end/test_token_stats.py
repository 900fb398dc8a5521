"""Statistics of single tokens: what an online run keeps of a few answers, and that it changes nothing in the run."""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cutting import ONLINE, STEPS, TIMES
from making import make_model, make_rollout

from qed.algorithms.grpo import Grpo
from qed.algorithms.sft import Sft
from qed.config.settings import ModelSettings
from qed.loops.token_stats import choose_answers
from qed.models.load import load_model
from qed.models.token_text import load_token_text
from qed.runs.run import Row, read_lines
from qed.runs.step_index import name_index, read_group, read_index
from qed.runs.token_stats import name_stats
from qed.training.batch import collate
from qed.training.packing import pack_batch
from qed.training.scoring import score_with
from qed.training.top_logps import compute_top_logps
from qed.types import Problem, Rollout, Support

Qed = Callable[..., Any]
Command = Callable[..., list[Any]]
# Two updates a step, and a reference model.
GRPO = ("grpo", *ONLINE, "--learner.batch_size", 12, "--algorithm.kl", 0.1)
COUNT, TOP = 3, 8
RECORDED = ("--run.save_token_stats", COUNT, "--run.save_top_logps", TOP)


@pytest.fixture
def run(qed: Qed, command: Command, tmp_path: Path) -> Path:
    """A run with statistics."""
    done = qed(*command(*GRPO, *RECORDED), "--out", tmp_path / "run")
    assert done.code == 0, done.err
    return tmp_path / "run"


def read_metrics(run: Path) -> list[Row]:
    """The rows of metrics.jsonl without times."""
    return [{k: v for k, v in row.items() if not k.startswith(TIMES)} for row in read_lines(run / "metrics.jsonl")]


def list_files(run: Path) -> list[Path]:
    """The files of answers of all steps."""
    return sorted(run.glob("rollouts/*.jsonl.zst"))


def pair(file: Path) -> list[tuple[Row, Row]]:
    """The statistics of a step, each with the answer that they are of."""
    index = read_index(name_index(file))
    assert index is not None
    return [(row, read_group(file, index, row["group"])[row["answer"]]) for row in read_lines(name_stats(file))]


def test_a_run_is_the_same_with_and_without_statistics(run: Path, qed: Qed, command: Command, tmp_path: Path) -> None:
    """Its metrics, answers and weights, bit by bit; also the count of operations behind `perf/mfu`."""
    without = tmp_path / "without"
    assert qed(*command(*GRPO, "--run.save_token_stats", 0), "--out", without).code == 0
    assert read_metrics(run) == read_metrics(without)
    for name in [file.name for file in list_files(run)]:
        assert (run / "rollouts" / name).read_bytes() == (without / "rollouts" / name).read_bytes()
    assert not list(without.glob("rollouts/*.stats.zst"))
    weights = [(each / "final/hf/model.safetensors").read_bytes() for each in (run, without)]
    assert weights[0] == weights[1]


def test_the_statistics_are_those_of_the_learner(run: Path) -> None:
    """Before the first update it has sampled the answer itself, and after the last one its checkpoint says the same."""
    files = list_files(run)
    assert len(files) == STEPS
    for file in files:
        found = pair(file)
        assert len(found) == COUNT
        assert max(row["advantage"] for _, row in found) > 0 > min(row["advantage"] for _, row in found)
        for stats, row in found:
            assert stats["learner_logps"] == pytest.approx(row["logps"], abs=2e-5)
            assert stats["updated_logps"] != stats["learner_logps"]
            assert len(stats["ref_logps"]) == len(stats["entropy"]) == len(row["tokens"])
            for place, top in enumerate(stats["top"]):
                logps = [logp for _, logp in top]
                assert len(top) == TOP
                assert logps == sorted(logps, reverse=True)
                known = dict(top).get(row["tokens"][place], logps[-1])
                assert known >= stats["learner_logps"][place] - 2e-5
                assert 0 < stats["entropy"][place] <= math.log(400)
    model, tokenizer = load_model(ModelSettings(name=str(run / "final/hf"), device="cpu"))
    for stats, row in pair(files[-1]):
        prompt = tokenizer(row["prompt"], add_special_tokens=False)["input_ids"]
        whole = Rollout(Problem("p", "", ""), prompt, row["tokens"], row["logps"], row["text"], row["stop_reason"])
        (scored,) = score_with(model, 1.0)([whole], torch.float32)
        assert stats["updated_logps"] == pytest.approx(scored, abs=2e-5)


@pytest.mark.parametrize("packed", [False, True])
def test_the_likeliest_tokens_are_those_of_the_plain_formula(packed: bool) -> None:
    """Also of a filtered answer: of the tokens that could be sampled, of which there may be fewer."""
    source, model = random.Random(0), make_model()
    plain, filtered = (make_rollout(source) for _ in range(2))
    filtered.loss_mask = (False,) + (True,) * (len(filtered.output) - 1)
    # Two tokens could be sampled at the first place, all but two at the others.
    filtered.support = Support(
        array("i", [2] + [-2] * (len(filtered.output) - 1)), array("i", [1, 2] * len(filtered.output))
    )
    batch = collate([plain, filtered], dtype=torch.float64)
    columns = compute_top_logps(model, batch, 0.7, 3, layout=pack_batch(batch) if packed else None)
    values, tokens = torch.stack(columns[:3], -1), torch.stack(columns[3:], -1)
    for row, rollout in enumerate((plain, filtered)):
        first, end = len(rollout.prompt) - 1, len(rollout.prompt) + len(rollout.output) - 1
        logits = model(torch.tensor([[*rollout.prompt, *rollout.output]])).logits[0, first:end] / 0.7
        if rollout is filtered:
            logits[1:, 1:3] = -torch.inf
        wanted = logits.log_softmax(-1).topk(3)
        trained = torch.tensor(rollout.trained)
        torch.testing.assert_close(values[row, first:end][trained], wanted.values[trained])
        assert tokens[row, first:end][trained].tolist() == wanted.indices[trained].tolist()
        assert not values[row, first:end][~trained].any()


def test_a_support_of_fewer_tokens_leaves_places_empty() -> None:
    rollout = make_rollout(random.Random(1))
    rollout.support = Support(array("i", [1] * len(rollout.output)), array("i", rollout.output))
    columns = compute_top_logps(make_model(), collate([rollout], dtype=torch.float64), 1.0, 2)
    place = len(rollout.prompt) - 1
    assert [float(columns[number][0, place]) for number in (0, 1)] == [0.0, -math.inf]
    assert int(columns[2][0, place]) == rollout.output[0]


def test_without_rollouts_nothing_is_recorded(qed: Qed, command: Command, tmp_path: Path) -> None:
    done = qed(*command(*GRPO, *RECORDED), "--run.save_rollouts", "false", "--steps", 1, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    assert not (tmp_path / "run/rollouts").exists()


def test_the_tokenizer_gives_the_text_of_each_token(run: Path, qed: Qed, command: Command) -> None:
    """It is written once: a run that goes on leaves it as it is."""
    tokenizer = load_token_text(run / "tokenizer.json")
    for file in list_files(run):
        for row in read_lines(file):
            pieces = tokenizer.split(row["tokens"])
            assert len(pieces) == len(row["tokens"])
            # The prompt has opened the thought, and the end token has a text as well.
            assert row["text"].removeprefix("<think>").strip() in "".join(pieces)
    written = (run / "tokenizer.json").stat().st_mtime_ns
    assert qed(*command(*GRPO, *RECORDED), "--out", run, "--steps", STEPS + 1, "--resume").code == 0
    assert (run / "tokenizer.json").stat().st_mtime_ns == written
    assert len(read_lines(run / "rollouts/step_000005.stats.zst")) == COUNT


@pytest.mark.parametrize(("setting", "value"), [("save_token_stats", -1), ("save_top_logps", 21)])
def test_counts_out_of_range_are_refused(qed: Qed, setting: str, value: int) -> None:
    done = qed("grpo", f"--run.{setting}", value)
    assert done.code == 2
    assert f"run.{setting} must" in done.err


def make_group(*advantages: float, **fields: Any) -> list[Rollout]:
    """A group of answers with these advantages."""
    problem = Problem("p", "?", "1")
    return [Rollout(problem, (1,), (2,), (-1.0,), "", "stop", advantage=each, **fields) for each in advantages]


def test_answers_are_chosen_from_both_ends_of_groups_with_a_gradient() -> None:
    groups = [make_group(0, 0), [], *(make_group(-1, 2, 1, -2) for _ in range(4)), make_group(3, source="greedy")]
    rows = [rollout for group in groups for rollout in group]
    # The empty group has no number in the file, and the first none with a gradient.
    assert list(choose_answers(groups, rows, Grpo(), 4)) == [(1, 1), (1, 3), (3, 1), (3, 3)]
    assert list(choose_answers(groups, rows, Grpo(), 3)) == [(1, 1), (1, 3), (3, 1)]
    assert list(choose_answers(groups[:3], rows, Grpo(), 9)) == [(1, 0), (1, 1), (1, 2), (1, 3)]
    assert list(choose_answers(groups, rows[:2], Grpo(), 4)) == []
    assert list(choose_answers(groups, rows[:2], Sft(), 4)) == [(0, 0), (0, 1)]
    assert list(choose_answers(groups, rows, Grpo(), 0)) == []
