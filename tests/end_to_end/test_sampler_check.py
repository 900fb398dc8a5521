"""Before anything is trained or measured, the sampler's log-probs are compared with the learner's; and old log-probs
are the learner's own where the sampler's are not exact."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cutting import by_chance, write_data
from transformers import MistralConfig, MistralForCausalLM

from qed.models.load import build_model
from qed.runs.run import read_lines
from qed.training.learner import Learner

# Samplers of a user's own, each wrong in its own way; `hf` is right.
BROKEN = '''
"""Broken on purpose."""
import copy
from dataclasses import replace
import torch
from qed.sampling.hf import HFSampler

KIND = "{kind}"

class Blind:
    def __init__(self, model):
        self.model = model
    def __getattr__(self, name):
        return getattr(self.model, name)
    def generate(self, attention_mask, **given):
        return self.model.generate(attention_mask=torch.ones_like(attention_mask), **given)

class Broken(HFSampler):
    def generate(self, prompts, seeds, sampling, given=()):
        if KIND == "temperature":
            sampling = replace(sampling, temperature=1.0)
        found = super().generate(prompts, seeds, sampling, given)
        if KIND == "shifted":
            found = [[replace(one, logps=(0.0, *one.logps[:-1])) for one in some] for some in found]
        return found

def make(model, tokenizer, ends, rows_per_batch, precision):
    if KIND == "padding":
        model = Blind(model)
    elif KIND == "stale":
        model = copy.deepcopy(model)
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    elif KIND == "window":
        config = copy.deepcopy(model.config)
        config.sliding_window = None
        other = type(model)(config)
        other.load_state_dict(model.state_dict())
        model = other
    elif KIND == "scaled":
        model = copy.deepcopy(model)
        model.get_output_embeddings().register_forward_hook(lambda *seen: 1.3 * seen[-1])
    return Broken(model, tokenizer, ends, rows_per_batch, precision)
'''
KINDS = ["padding", "window", "shifted", "temperature", "stale", "scaled"]
TRAIN = ["--steps", 2, "--sampling.problems_per_step", 2, "--sampling.group_size", 2, "--sampling.temperature", 0.7]
TRAIN += ["--sampling.max_tokens", 20, "--evaluation.problems", 2, "--evaluation.samples", 0]


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A small Mistral whose layers see 8 tokens, and problems."""
    home = tmp_path_factory.mktemp("windowed")
    problems, _ = write_data(home)
    _, tokenizer = build_model("new:tiny", [problems.read_text()], 0)
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        initializer_range=0.3,
        sliding_window=8,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    MistralForCausalLM(config).save_pretrained(home / "model")
    tokenizer.save_pretrained(home / "model")
    return home / "model", problems


def command(name: str, model: Path, problems: Path, sampler: object, out: Path) -> list[object]:
    """Training, an evaluation, or a look at generations."""
    if name == "grpo":
        return ["grpo", "--model", model, "--tasks", problems, *TRAIN, "--sampling.sampler", sampler, "--out", out]
    if name == "evaluate":
        few = ["--limit", 4, "--max-tokens", 20, "--json"]
        return ["evaluate", "--model", model, "--tasks", problems, "--sampler", sampler, "--out", out, *few]
    few = ["--problems", 2, "--answers", 2, "--sampling.max_tokens", 20, "--sampling.temperature", 0.7, "--json"]
    return ["debug-generations", model, "--tasks", problems, "--sampling.sampler", sampler, *few]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["grpo", "evaluate", "debug-generations"])
def test_a_broken_sampler_is_refused(
    qed: Callable[..., Any], windowed: tuple[Path, Path], tmp_path: Path, name: str, kind: str
) -> None:
    """With exit code 2, a message that names the other sampler, and nothing sampled for the run."""
    sampler = tmp_path / f"{kind}.py"
    sampler.write_text(BROKEN.replace("{kind}", kind), encoding="utf-8")
    done = qed(*command(name, *windowed, sampler, tmp_path / "run"))
    assert done.code == 2, done.err
    assert "log-probs are not the model's own" in done.err
    assert ("--sampler hf" if name == "evaluate" else "--sampling.sampler hf") in done.err
    assert "Traceback" not in done.err
    assert not list(tmp_path.glob("run/rollouts/*"))
    assert not list(tmp_path.glob("run/eval/*"))
    if name == "grpo":
        (event,) = [row for row in read_lines(tmp_path / "run" / "events.jsonl") if row["event"] == "sampler_check"]
        assert event["passed"] is False


@pytest.mark.parametrize("name", ["grpo", "evaluate", "debug-generations"])
def test_a_healthy_sampler_is_told_of(
    qed: Callable[..., Any], windowed: tuple[Path, Path], tmp_path: Path, name: str
) -> None:
    more = ["--run.on_no_signal", "warn"] if name == "grpo" else []
    done = qed(*command(name, *windowed, "hf", tmp_path / "run"), *more)
    assert done.code == 0, done.err
    assert "Sampler against learner" in done.out + done.err
    if name == "evaluate":
        (found,) = done.result["sampler_check"].values()
    elif name == "grpo":
        (found,) = [row for row in read_lines(tmp_path / "run" / "events.jsonl") if row["event"] == "sampler_check"]
        first = read_lines(tmp_path / "run" / "metrics.jsonl")[0]
        assert (first["step"], first["sampler_check/logp_diff_max"]) == (0, found["logp_diff_max"])
    else:
        found = done.result["sampler_check"]
    assert found["passed"] is True
    assert found["tokens"] > 50
    assert 0 < found["logp_diff_max"] < 1e-4


def test_it_can_be_left_out_and_comes_again_with_a_resumed_run(
    qed: Callable[..., Any], windowed: tuple[Path, Path], tmp_path: Path
) -> None:
    """A run that goes on may do so elsewhere: it compares again, and its metrics keep the first comparison alone."""
    model, problems = windowed
    sampler, run = tmp_path / "shifted.py", tmp_path / "run"
    sampler.write_text(BROKEN.replace("{kind}", "shifted"), encoding="utf-8")
    left_out = [*command("grpo", model, problems, sampler, tmp_path / "other"), "--run.preflight", "false"]
    assert qed(*left_out, "--run.on_no_signal", "warn").code == 0
    begun = [*command("grpo", model, problems, "hf", run), "--run.on_no_signal", "warn"]
    assert qed(*begun).code == 0
    assert qed(*begun, "--steps", 3, "--resume").code == 0
    events = [row["step"] for row in read_lines(run / "events.jsonl") if row["event"] == "sampler_check"]
    assert events == [0, 2]
    assert sum("sampler_check/tokens" in row for row in read_lines(run / "metrics.jsonl")) == 1


@pytest.mark.parametrize(
    ("method", "precision", "in_update"),
    [
        ("gspo", "bfloat16", True),
        ("grpo", "bfloat16", True),
        ("gspo", "float32", False),
        ("reinforce", "bfloat16", False),
        ("dppo", "bfloat16", False),
    ],
)
def test_a_ratio_is_never_one_of_rounding(
    qed: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    precision: str,
    in_update: bool,
) -> None:
    """On policy, with one update a step, nothing is clipped; the sampler's own log-probs are still told apart."""
    asked, score = list[tuple[bool, bool]](), Learner.score

    def spy(self: Learner, rollouts: Any, old: bool, *more: Any, **given: Any) -> None:
        asked.append((old, given["in_update"]))
        score(self, rollouts, old, *more, **given)

    monkeypatch.setattr(Learner, "score", spy)
    monkeypatch.setattr("qed.rollout.collector.grade", by_chance)
    small = ["--steps", 2, "--sampling.problems_per_step", 8, "--sampling.group_size", 4, "--sampling.max_tokens", 12]
    small += ["--evaluation.problems", 2, "--evaluation.samples", 0, "--run.preflight", "false"]
    done = qed(method, "--model.precision", precision, "--out", tmp_path / "run", *small)
    assert done.code == 0, done.err
    assert asked == [(False, in_update)] * 2
    rows = [row for row in read_lines(tmp_path / "run" / "metrics.jsonl") if "train/loss" in row]
    assert len(rows) == 2
    for row in rows:
        assert row["train/live_rows"] > 0
        assert row["mismatch/logp"] > 0
        if in_update:
            assert row["clip/low"] == row["clip/high"] == 0
            assert row["ratio/log_max"] < 1e-6


def test_a_correction_still_compares_with_the_sampler(
    qed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qed.rollout.collector.grade", by_chance)
    small = ["--steps", 1, "--sampling.problems_per_step", 4, "--sampling.group_size", 4, "--sampling.max_tokens", 8]
    small += ["--evaluation.problems", 2, "--evaluation.samples", 0, "--model.precision", "bfloat16"]
    for correction in ("token_truncate", "bypass"):
        out = tmp_path / correction
        done = qed("grpo", *small, "--algorithm.correction", correction, "--out", out)
        assert done.code == 0, done.err
        (row,) = [row for row in read_lines(out / "metrics.jsonl") if "train/loss" in row]
        # Rounding of the two is nearly alike where a processor has no instructions for bfloat16.
        assert (row["ratio/log_max"] > 1e-6) == (correction == "bypass"), json.dumps(row)
        assert correction == "bypass" or row["correction/ratio_max"] != 1, json.dumps(row)
