"""Runs whose length, data and measures are set in other ways: epochs, a phase's own data, conversations, other tags."""

from __future__ import annotations

import json
import logging
import math
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cutting import assert_same, cut
from safetensors.torch import load_file

from qed.runs.run import read_lines

Qed = Callable[..., Any]
TINY = ["--model", "new:tiny", "--run.threads", 1, "--run.preflight", "false", "--run.on_no_signal", "warn"]
TINY += ["--evaluation.problems", 4, "--sampling.max_tokens", 6, "--sampling.group_size", 2]
TINY += ["--sampling.problems_per_step", 4, "--learner.batch_size", 8]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def make_sums(path: Path, count: int, word: str = "plus") -> Path:
    rows = [
        {"question": f"{n} {word} 7?", "answer": str(n + 7), "solution": f"{n} and 7 make {n + 7}."}
        for n in range(count)
    ]
    return write_rows(path, rows)


def make_chat(path: Path, count: int) -> Path:
    said = [("user", "Tell me of {}."), ("assistant", "{} is fine.")]
    talks = [[{"role": role, "content": text.format(n)} for role, text in said] for n in range(count)]
    return write_rows(path, [{"messages": talk} for talk in talks])


def questions(run: Path) -> set[str]:
    return {str(row["question"]) for path in run.glob("rollouts/*.jsonl.zst") for row in read_lines(path)}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("data")
    return make_sums(folder / "first.jsonl", 24, "plus"), make_sums(folder / "second.jsonl", 16, "and")


def test_phases_train_on_their_own_data_for_their_own_epochs(qed: Qed, tmp_path: Path, both: tuple[Path, Path]) -> None:
    first, second = both
    command = ["pipeline", *TINY, "--sft.data.tasks", first, "--rl.data.tasks", second, "--learner.epochs", 1]
    command += ["--sft.data.prompt", "think_answer", "--run.save_every", 1, "--rl.learner.batch_size", 0]
    command += ["--sft.data.unique_examples", 1000]
    done = qed(*command, "--out", tmp_path / "whole")
    assert done.code == 0, done.err
    assert "data.unique_examples is 1,000 in sft, but only 24 problems are left." in done.out
    events = read_lines(tmp_path / "whole" / "events.jsonl")
    assert [row["steps"] for row in events if row["event"] == "epochs"] == [3, 4]  # 24 rows by 8; 15 problems by 4
    (data,) = (row for row in events if row["event"] == "data")
    assert (data["first_phase"]["prompt"], data["prompt"]) == ("think_answer", "r1_zero")
    assert (data["first_phase"]["training"], data["training"]) == (24, 15)
    card = (tmp_path / "whole" / "README.md").read_text(encoding="utf-8")
    assert re.search("24 training problems of .* in the first phase, then 15 training problems of", card)
    assert list(data["held_out"]) == ["second"]
    assert all(" and " in question for question in questions(tmp_path / "whole"))
    assert "sft: learner.epochs=1 over 24, 8 a step: 3 steps." in done.out
    # A run that is stopped in its second phase goes on as if it had not been, with its own settings.
    run = cut(tmp_path / "whole", 5, tmp_path / "cut")
    resumed = qed("pipeline", "--resume", "--out", run)
    assert resumed.code == 0, resumed.err
    assert_same(tmp_path / "whole", run)
    report = (tmp_path / "whole" / "report.html").read_text(encoding="utf-8")
    assert "first.jsonl" in report
    assert "second.jsonl" in report


def test_data_shared_by_both_phases_is_loaded_once(
    qed: Qed, tmp_path: Path, both: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qed.loops.material.load_training_problems", lambda *_: pytest.fail("loaded twice"))
    done = qed("pipeline", *TINY, "--tasks", both[0], "--steps", 1, "--sft.data.window", 32, "--out", tmp_path / "run")
    assert done.code == 0, done.err


def test_sft_on_conversations_reports_the_loss_on_those_that_are_held_out(qed: Qed, tmp_path: Path) -> None:
    train, held = make_chat(tmp_path / "chat.jsonl", 30), make_chat(tmp_path / "held.jsonl", 5)
    command = ["sft", *TINY, "--tasks", train, "--prompt", "chat", "--steps", 4, "--evaluation.every", 2]
    done = qed(*command, "--out", tmp_path / "run", "--json")
    assert done.code == 0, done.err
    rows = read_lines(tmp_path / "run" / "metrics.jsonl")
    losses = {row["step"]: row["eval/validation/loss"] for row in rows if "eval/validation/loss" in row}
    assert list(losses) == [0, 2, 4]
    assert losses[4] < losses[2] < losses[0]
    assert done.result["validation"] == pytest.approx({"loss": losses[4], "perplexity": math.exp(losses[4])})
    best = (tmp_path / "run" / "checkpoints" / "BEST").read_text().strip()
    assert best == "step_000004"
    (data,) = (row for row in read_lines(tmp_path / "run" / "events.jsonl") if row["event"] == "data")
    assert (data["training"], data["validation"]) == (27, 3)
    given = qed(*command, "--evaluation.tasks", held, "--out", tmp_path / "given")
    assert given.code == 0, given.err
    (data,) = (row for row in read_lines(tmp_path / "given" / "events.jsonl") if row["event"] == "data")
    assert (data["training"], data["validation"]) == (25, 4)  # of the five, as evaluation.problems says


def test_sft_reports_accuracy_and_loss_of_the_validation_part(
    qed: Qed, tmp_path: Path, both: tuple[Path, Path]
) -> None:
    own = ["--data.validation_split", 0.2, "--steps", 1, "--evaluation.at_start", "false"]
    done = qed("sft", *TINY, "--tasks", both[0], *own, "--out", tmp_path / "run", "--json")
    assert done.code == 0, done.err
    assert {"accuracy", "format", "n", "loss", "perplexity"} <= done.result["validation"].keys()


def test_the_held_out_loss_is_that_of_the_weights(qed: Qed, tmp_path: Path) -> None:
    """The mean over all tokens of the held-out replies, computed from the logits of the checkpoint."""
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415

    train, held = make_chat(tmp_path / "chat.jsonl", 20), make_chat(tmp_path / "held.jsonl", 3)
    command = ["sft", *TINY, "--tasks", train, "--evaluation.tasks", held, "--prompt", "chat", "--steps", 2]
    assert qed(*command, "--out", tmp_path / "run").code == 0
    folder = tmp_path / "run" / "final" / "hf"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    total, count = 0.0, 0
    for row in read_lines(held):
        prompt = tokenizer.apply_chat_template(row["messages"][:1], tokenize=False, add_generation_prompt=True)
        asked = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        said = tokenizer(row["messages"][1]["content"], add_special_tokens=False)["input_ids"]
        said += [tokenizer.eos_token_id]
        logps = model(torch.tensor([asked + said])).logits[0, len(asked) - 1 : -1].log_softmax(-1)
        total -= float(logps.gather(1, torch.tensor(said)[:, None]).sum())
        count += len(said)
    rows = read_lines(tmp_path / "run" / "metrics.jsonl")
    found = [row["eval/validation/loss"] for row in rows if "eval/validation/loss" in row]
    assert found[-1] == pytest.approx(total / count, abs=1e-5)


def test_reasoning_is_measured_between_the_tags_in_use(
    qed: Qed, tmp_path: Path, both: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "qed.data.prompts.base.PromptTemplate.read", lambda *_: "<denk>12345</denk><SOLUTION>8</SOLUTION>"
    )
    tags = "working_out.reasoning_start=<denk>,working_out.reasoning_end=</denk>"
    command = ["grpo", *TINY, "--tasks", both[0], "--prompt", "working_out", "--data.prompt_options", tags]
    done = qed(*command, "--steps", 1, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    rows = read_lines(tmp_path / "run" / "metrics.jsonl")
    (evaluated,) = (row for row in rows if row["step"] == 1 and "time/evaluate" in row)
    assert evaluated["eval/first/greedy/reasoning/chars"] == 5
    assert evaluated["eval/first/greedy/reasoning/frac"] == 1
    (trained,) = (row for row in rows if "reward/mean" in row)
    assert (trained["reasoning/chars"], trained["reasoning/frac"]) == (5, 1)


def test_evaluations_are_sampled_as_set_and_need_not_be_at_the_start(
    qed: Qed, tmp_path: Path, both: tuple[Path, Path]
) -> None:
    cold = ["--evaluation.temperature", 0.5, "--evaluation.top_k", 1, "--no-evaluation.at_start"]
    command = ["grpo", *TINY, "--tasks", both[0], "--steps", 1, *cold]
    done = qed(*command, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    (summary,) = (tmp_path / "run").glob("eval/step_*/summary.json")
    assert summary.parent.name == "step_000001"
    figures = json.loads(summary.read_text())["first"]
    assert (figures["greedy"]["temperature"], figures["sampled"]["temperature"]) == (0.0, 0.5)
    texts = {
        decoding: [row["text"] for row in read_lines(summary.parent / "first.jsonl") if row["decoding"] == decoding]
        for decoding in ("greedy", "sampled")
    }
    assert texts["sampled"] == texts["greedy"]  # the likeliest token alone is left


@pytest.mark.parametrize(("every", "evaluated"), [(0, []), (1, [1, 2]), (2, [2])])
def test_evaluations_need_not_be_at_the_ends(
    qed: Qed, tmp_path: Path, both: tuple[Path, Path], every: int, evaluated: list[int]
) -> None:
    neither = ["--no-evaluation.at_start", "--no-evaluation.at_end", "--evaluation.every", every]
    done = qed("sft", *TINY, "--tasks", both[0], "--steps", 2, *neither, "--json", "--out", tmp_path / "run")
    assert done.code == 0, done.err
    rows = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows if "time/evaluate" in row] == evaluated
    assert sorted(path.name for path in (tmp_path / "run").glob("eval/*")) == [f"step_{n:06d}" for n in evaluated]
    assert ("first" in json.loads(done.out)) == bool(evaluated)
    if not evaluated:
        assert "No held-out evaluation was made" in (tmp_path / "run" / "report.html").read_text()


def test_a_checkpoint_of_half_precision_resumes_exactly(qed: Qed, tmp_path: Path, both: tuple[Path, Path]) -> None:
    command = ["sft", *TINY, "--tasks", both[0], "--steps", 3, "--run.save_every", 1, "--lr", 1e-3]
    for name, dtype in (("exact", "float32"), ("half", "bfloat16")):
        assert qed(*command, "--run.save_dtype", dtype, "--out", tmp_path / name).code == 0
    run = cut(tmp_path / "half", 1, tmp_path / "cut")
    assert qed("sft", "--resume", "--out", run).code == 0
    assert_same(tmp_path / "half", run)
    exact, half = (load_file(tmp_path / name / "final" / "hf" / "model.safetensors") for name in ("exact", "half"))
    assert exact.keys() == half.keys()  # tied weights stay tied
    for name, weights in exact.items():
        assert half[name].dtype == torch.bfloat16
        assert torch.equal(weights.to(torch.bfloat16), half[name]), name
    assert json.loads((tmp_path / "half" / "final" / "hf" / "config.json").read_text())["dtype"] == "bfloat16"
    done = qed("export", tmp_path / "half", "--dtype", "float32", "--out", tmp_path / "whole")
    assert done.code == 0, done.err
    whole = load_file(tmp_path / "whole" / "model.safetensors")
    assert all(torch.equal(weights, whole[name]) for name, weights in exact.items())


def test_the_log_has_every_line_of_the_console_and_all_warnings(
    qed: Qed, tmp_path: Path, both: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "run" / "logs" / "attempt_1" / "main.log"
    seen: list[str] = []

    def warn(*_: Any) -> bool:
        warnings.warn("watch out", stacklevel=1)
        logging.getLogger("somebody").warning("mind the %s", "step")
        seen.append(log.read_text(encoding="utf-8"))  # what is said before is in the file at once
        return False

    monkeypatch.setattr("qed.loops.phase.Phase.save_if_due", warn)
    with pytest.warns(UserWarning, match="watch out"):
        done = qed("sft", *TINY, "--tasks", both[0], "--steps", 2, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    text = log.read_text(encoding="utf-8")
    lines = [line for line in done.out.splitlines() if line.startswith(("step ", "  step", "sft:", "Done"))]
    assert len(lines) >= 5
    for line in lines:
        assert line.split("  tokens/s")[0].strip() in text
    assert "UserWarning: watch out" in text
    assert "WARNING somebody: mind the step" in text
    assert "step 0, first: greedy" in seen[0]


def test_a_dry_run_without_demonstrations_fails_as_the_run_does(qed: Qed, tmp_path: Path) -> None:
    data = tmp_path / "bare.jsonl"
    data.write_text("".join(f'{{"question": "What is {n} + 1?", "answer": "{n + 1}"}}\n' for n in range(20)))
    done = qed("sft", *TINY, "--tasks", data, "--dry-run")
    assert (done.code, "There is no demonstration to imitate" in done.err) == (3, True)
    assert qed("grpo", *TINY, "--tasks", data, "--dry-run").code == 0


def test_a_dry_run_of_few_questions_tells_no_length_above_the_longest(qed: Qed, tmp_path: Path) -> None:
    data = tmp_path / "few.jsonl"
    data.write_text("".join(f'{{"question": "{"x" * 4**n}", "answer": "{n}"}}\n' for n in range(6)))
    done = qed("grpo", *TINY, "--tasks", data, "--evaluation.tasks", "arithmetic:test", "--dry-run")
    assert "40 characters in the median, 832 at the 95th percentile, 1024 at most" in done.out


def test_a_dry_run_counts_problems_without_an_answer_as_the_run_does(qed: Qed, tmp_path: Path) -> None:
    data = tmp_path / "partly.jsonl"
    rows = [{"question": f"What is {n} + 1?", "answer": n + 1 if n % 4 else None} for n in range(20)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    settings = ("grpo", *TINY, "--tasks", data, "--evaluation.tasks", "arithmetic:test", "--data.prompt", "chat")
    assert "            5 problems have no answer to reward, and are left out" in qed(*settings, "--dry-run").out
    assert (
        "Left out 5 of 20 training problems, because they have no reference answer"
        in qed(*settings, "--out", tmp_path / "run").out
    )
    data.write_text("".join(json.dumps({**row, "answer": None}) + "\n" for row in rows), encoding="utf-8")
    done = qed(*settings, "--dry-run")
    assert (done.code, "No training problem has a reference answer" in done.err) == (3, True)


@pytest.mark.parametrize("algorithm", ["dpo", "reward-model"])
def test_a_dry_run_counts_pairs_where_pairs_are_learned_from(
    qed: Qed, tmp_path: Path, both: tuple[Path, Path], algorithm: str
) -> None:
    done = qed(algorithm, *TINY, "--tasks", both[0], "--dry-run")
    assert (done.code, "There is no preference pair to learn from" in done.err) == (3, True)
    pairs = tmp_path / "pairs.jsonl"
    row = {"prompt": "What is {} + 1?", "chosen": "{}", "rejected": "I do not know."}
    rows = [{key: text.format(n) for key, text in row.items()} for n in range(20)]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    done = qed(algorithm, *TINY, "--tasks", pairs, "--dry-run")
    assert (done.code, "pairs       20 with a chosen and a rejected reply" in done.out) == (0, True), done.err


def test_a_dry_run_looks_at_the_model(qed: Qed, tmp_path: Path, both: tuple[Path, Path]) -> None:
    assert qed("sft", *TINY, "--tasks", both[0], "--steps", 1, "--out", tmp_path / "run").code == 0
    model = tmp_path / "run" / "final" / "hf"
    common = ["grpo", "--tasks", both[0], "--sampling.max_tokens", 16, "--dry-run", "--learner.epochs", 2]
    done = qed(*common, "--model", model)
    assert done.code == 0, done.err
    assert "M parameters, a window of 512 tokens, a chat template" in done.out
    assert "prompts of at most" in done.out
    assert "memory: about" in done.out
    assert "at most 3 steps of 16 problems" in done.out
    run = qed(*common, "--model", tmp_path / "run")
    assert (run.code, f"Did you mean {model}?" in run.err) == (3, True)
    assert "prompts are above 30 tokens: left out" in qed(*common, "--model", model, "--data.max_prompt_tokens", 30).out
    done = qed(*common, "--model", tmp_path / "nothing")
    assert (done.code, "There is no model folder" in done.err) == (3, True)
    nearly = tmp_path / "run" / "final" / "hff"
    assert (f"There is no model folder {nearly}. Did you mean 'hf'?") in qed(*common, "--model", nearly).err
    (model / "chat_template.jinja").unlink()
    done = qed(*common, "--model", model, "--prompt", "chat")
    assert (done.code, "needs a chat template" in done.err) == (3, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_an_evaluation_is_configured_by_a_file(qed: Qed, tmp_path: Path, both: tuple[Path, Path]) -> None:
    assert qed("sft", *TINY, "--tasks", both[0], "--steps", 1, "--out", tmp_path / "run").code == 0
    config = tmp_path / "evaluation.yaml"
    text = f"model: {tmp_path}/run/final/hf\ntasks: [{both[1]}]\nsamples: 2\nlimit: 3\nmax-tokens: 4\njson: true\n"
    config.write_text(text)
    done = qed("evaluate", config, "--out", tmp_path / "one")
    assert done.code == 0, done.err
    assert (done.result["tasks"]["second"]["n"], done.result["tasks"]["second"]["k"]) == (3, 2)
    sections = f"model: {{name: {tmp_path}/run/final/hf}}\nevaluation: {{tasks: {both[1]}, temperature: 0.5}}\n"
    config.write_text(sections + "learner: {lr: 1e-3}\nsampling: {max_tokens: 4}\n")
    done = qed("evaluate", config, "--limit", 2, "--out", tmp_path / "two", "--json")
    assert done.code == 0, done.err
    assert (done.result["tasks"]["second"]["n"], done.result["tasks"]["second"]["temperature"]) == (2, 0.5)
    assert "training" not in done.err


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        (
            "sampling: {temperature: 0.7, top_p: 0.9}",
            (),
            "e.yaml: sampling.temperature and sampling.top_p are those of training. An evaluation takes "
            "evaluation.temperature and evaluation.top_p in the file, or --temperature and --top-p.",
        ),
        (
            "sampling: {temperature: 0.7, top_p: 0.9}",
            ("--temperature", 1),
            "e.yaml: sampling.top_p is that of training.",
        ),
        ("sampling: {min_p: 0.1}\nmin_p: 0.1", (), ""),
        ("sampling: {top_k: 5}\nevaluation: {top_k: null}", (), ""),
        ("sampling: {temperature: 0.7}", ("--greedy",), ""),
        ("sampling: {temperature: 0.7}", ("--sweep", "temperature=0.5"), ""),
        ("extends: base.yaml", (), ""),
    ],
)
def test_sampling_of_training_in_the_file_of_an_evaluation_is_said(
    qed: Qed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, options: tuple[Any, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("qed.cli.commands.evaluate._evaluate", lambda *_: {"tasks": {}})
    Path("base.yaml").write_text("sampling: {temperature: 0.7}\n")
    Path("e.yaml").write_text(f"model: new:tiny\ntasks: arithmetic\n{text}\n")
    done = qed("evaluate", "e.yaml", *options)
    assert done.code == 0, done.err
    assert said in " ".join(done.out.split())
    assert ("training" in done.out) == bool(said)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("tasks: x\ntaskz: y", ":2: taskz is neither an option of qed evaluate nor a setting. Did you mean 'tasks'?"),
        ("samples: many", ":1: qed evaluate: argument --samples: invalid int value"),
        ("greedy: perhaps", ":1: greedy must be true or false."),
        ("reward: [boxed, my.py]", ":1: reward names code outside of qed, my.py"),
        ("tasks: gsm8k\nevaluation: {tasks: math}", ":2: evaluation.tasks is the same option as tasks ("),
        ("allow_user_code: true", ":1: allow_user_code is neither an option"),
    ],
)
def test_a_mistake_in_the_file_of_an_evaluation_is_told_with_its_line(
    qed: Qed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("e.yaml").write_text(text)
    done = qed("evaluate", "e.yaml")
    assert (done.code, done.err[: len("error: e.yaml")]) == (2, "error: e.yaml")
    assert what in done.err


def test_a_system_message_of_ones_own_is_in_the_prompt(qed: Qed, tmp_path: Path, both: tuple[Path, Path]) -> None:
    own = ["--data.system_prompt", "Answer like a pirate.", "--prompt", "think_answer"]
    done = qed("grpo", *TINY, "--tasks", both[0], *own, "--steps", 1, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    rows = [row for path in (tmp_path / "run").glob("rollouts/*.jsonl.zst") for row in read_lines(path)]
    assert all(row["prompt"].count("Answer like a pirate.") == 1 for row in rows)
    refused = qed("grpo", *TINY, "--tasks", both[0], *own, "--prompt", "r1_zero", "--out", tmp_path / "other")
    assert (refused.code, "r1_zero is plain text" in refused.err) == (2, True)
    # The system message belongs to the run's own prompt.
    other = qed(
        "evaluate", "--model", tmp_path / "run", "--tasks", both[1], "--prompt", "r1_zero", "--greedy", "--limit", 1
    )
    assert other.code == 0, other.err


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_the_attention_is_the_one_that_is_set(
    qed: Qed, tmp_path: Path, both: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, attention: str
) -> None:
    chosen: list[str] = []
    original = torch.nn.Module.train
    monkeypatch.setattr(
        "qed.models.load.prepare_model",
        lambda model, *_: chosen.append(model.config._attn_implementation) or original(model, False),
    )
    command = ["sft", *TINY, "--tasks", both[0], "--model.attention", attention, "--steps", 1]
    assert qed(*command, "--out", tmp_path / "run").code == 0
    given = ["--model", tmp_path / "run", "--limit", 1, "--samples", 1, "--out", tmp_path / "evaluation"]
    assert qed("evaluate", *given).code == 0
    assert set(chosen) == {attention}


def test_attention_kernels_that_are_not_there_are_refused(qed: Qed, tmp_path: Path, both: tuple[Path, Path]) -> None:
    done = qed("sft", *TINY, "--tasks", both[0], "--model.attention", "flash_attention_2", "--out", tmp_path / "run")
    assert (done.code, "needs a CUDA device and the package flash-attn" in done.err) == (2, True)
