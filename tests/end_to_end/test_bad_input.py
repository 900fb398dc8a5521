"""Bad input gets one screen, the right exit code and no traceback; nothing already written is lost."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from making import make_model
from safetensors.torch import load_file, save_file

# Those that import `write_bytes` by name come first: one that is loaded while it is patched would keep the patch.
import qed.loops.resume
import qed.report.write  # noqa: F401
from qed.errors import ModelError
from qed.models.load import build_model
from qed.models.sources import require_folder
from qed.runs import run as run_files
from qed.runs.run import read_lines

TINY = ["--steps", 3, "--sampling.problems_per_step", 2, "--sampling.group_size", 2, "--sampling.max_tokens", 4]
TINY += ["--evaluation.problems", 2, "--algorithm.entropy", 0.01]


def assert_refused(done: Any, code: int, *words: str) -> None:
    """One screen that names what is wrong, and no traceback."""
    assert done.code == code, done.err
    assert "Traceback" not in done.out + done.err
    assert len(done.err.splitlines()) <= 12
    for word in words:
        assert word in done.err, done.err


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (
            "broken.jsonl",
            '{"question": "1?", "answer": "#### 1"}\n{"question": "2?", \n',
            ["broken.jsonl, row 2", "JSON"],
        ),
        ("list.jsonl", '["question"]\n', ["row 1", "object"]),
        ("empty.jsonl", "", ["no problems"]),
        ("blank.jsonl", "\n\n", ["no problems"]),
        (
            "columns.jsonl",
            '{"qestion": "1?", "anser": "1"}\n',
            ["qestion, anser", "question", "--data.map question=qestion"],
        ),
        ("type.jsonl", '{"question": ["1?"], "answer": "1"}\n', ["row 1", "question is list"]),
        ("nothing.jsonl", '{"question": " ", "answer": "1"}\n', ["row 1", "empty"]),
        ("half.jsonl", '{"question": "\\ud800?", "answer": "1"}\n', ["row 1", "half of a UTF-16 pair"]),
        ("broken.json", '[{"question": "1?"', ["broken.json, line 1"]),
        ("object.json", '{"question": "1?"}', ["list of objects"]),
        ("headers.csv", "a,b\n1,2\n", ["row 1", "a, b"]),
        ("broken.parquet", "no parquet", ["cannot be read as parquet"]),
        ("broken.jsonl.gz", "no gzip", ["cannot be read"]),
        ("one.jsonl", '{"question": "1?", "answer": "#### 1"}\n', ["no demonstration to imitate"]),
    ],
)
def test_broken_data(qed: Callable[..., Any], tmp_path: Path, name: str, content: str, words: list[str]) -> None:
    file = tmp_path / name
    file.write_text(content, encoding="utf-8")
    assert_refused(qed("sft", "--tasks", file, "--out", tmp_path / "run", "--steps", 1), 3, *words)


def test_text_that_is_not_utf8_names_the_line(qed: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "latin.jsonl").write_bytes(
        b'{"question": "caf\xc3\xa9?", "answer": "#### 1"}\n{"question": "caf\xe9", "answer": "2"}\n'
    )
    assert_refused(qed("sft", "--tasks", tmp_path / "latin.jsonl", "--out", tmp_path / "run"), 3, "line 2", "UTF-8")


def test_columns_can_be_named(qed: Callable[..., Any], tmp_path: Path) -> None:
    rows = [{"frage": f"{number}+1?", "antwort": str(number + 1)} for number in range(40)]
    (tmp_path / "named.jsonl").write_text("\ufeff" + "\r\n".join(map(json.dumps, rows)), encoding="utf-8")
    data = ["--tasks", tmp_path / "named.jsonl", "--data.map", "question=frage,answer=antwort"]
    done = qed("grpo", *data, "--out", tmp_path / "run", "--prompt", "think_answer", *TINY, "--steps", 1)
    assert done.code == 0, done.err
    assert_refused(qed("grpo", *data[:3], "question:frage", "--out", tmp_path / "two", *TINY), 2, "NAME=VALUE")


def test_models_that_cannot_be_used(qed: Callable[..., Any], tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    make_model().save_pretrained(bare)
    assert_refused(qed("grpo", "--model", bare, "--out", tmp_path / "a"), 3, "no tokenizer", str(bare))
    pickled = tmp_path / "pickled"
    shutil.copytree(bare, pickled)
    (pickled / "tokenizer.json").write_text("{}")
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    assert_refused(qed("grpo", "--model", pickled, "--out", tmp_path / "b"), 3, "safetensors")
    assert_refused(qed("grpo", "--model", tmp_path, "--out", tmp_path / "c"), 3, "config.json")
    assert_refused(qed("grpo", "--model", "new:tinny", "--out", tmp_path / "d"), 2, "Did you mean 'tiny'?")


def test_weights_that_are_missing_or_broken(qed: Callable[..., Any], tmp_path: Path) -> None:
    network, tokenizer = build_model("new:tiny", ["one two 1 2 3"], seed=0)
    folder = tmp_path / "model"
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    save_file({name: tensor for name, tensor in tensors.items() if "layers.1.mlp" not in name}, file, {"format": "pt"})
    assert_refused(
        qed("grpo", "--model", folder, "--out", tmp_path / "a", *TINY), 3, "weights are missing", "layers.1.mlp"
    )
    file.write_bytes(file.read_bytes()[:5000])
    assert_refused(qed("grpo", "--model", folder, "--out", tmp_path / "b", *TINY), 3, "cannot be loaded")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("def reward(rollout):\n    rollout.text\n", ["returned NoneType", "a number or a qed.types.Grade"]),
        ("def reward(rollout):\n    return rollout.nothing\n", ["AttributeError", "on all of 8 answers"]),
        ("def score(rollout):\n    return 1.0\n", ["defines no reward"]),
        ("import nothing_of_this_name\n", ["nothing_of_this_name", "pip install nothing_of_this_name"]),
        ("def reward(rollout)\n", ["mine.py, line 1"]),
    ],
)
def test_a_users_reward_that_fails(qed: Callable[..., Any], tmp_path: Path, code: str, words: list[str]) -> None:
    (tmp_path / "mine.py").write_text(code)
    done = qed("grpo", "--reward", tmp_path / "mine.py", "--out", tmp_path / "run", *TINY)
    assert_refused(done, done.code, *words)
    assert done.code in (1, 2)


def test_a_reward_that_takes_too_long_for_every_answer(qed: Callable[..., Any], tmp_path: Path) -> None:
    """Such a run would have no reward, whose reason the figures do not show."""
    (tmp_path / "slow.py").write_text("import time\n\ndef reward(rollout):\n    time.sleep(60)\n")
    limit = ("--data.reward_seconds", 0.1, "--out", tmp_path / "run")
    assert_refused(
        qed("grpo", "--reward", tmp_path / "slow.py", *limit, *TINY), 1, "on all of 8 answers", "more than 0.6 s"
    )


def test_a_model_from_nowhere(qed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert_refused(
        qed("grpo", "--model", "nobody/nothing", "--out", tmp_path / "e"), 3, "nobody/nothing cannot be loaded"
    )


@pytest.mark.parametrize("name", ["sft", "dpo", "reward-model"])
def test_what_samples_nothing_leaves_no_room_for_an_answer(qed: Callable[..., Any], tmp_path: Path, name: str) -> None:
    """The longest answer is for what is evaluated: the window holds each prompt with the reply that the data has."""
    asked = [*(f"What is {number}?" for number in range(40)), "long " * 600]
    replies = {"completion": "A number."} if name == "sft" else {"chosen": "A number.", "rejected": "A city."}
    (tmp_path / "data.jsonl").write_text("\n".join(json.dumps({"prompt": each, **replies}) for each in asked))
    own = ["--model", "new:tiny", "--prompt", "question_only", "--steps", 1, "--data.validation_split", 0.1]
    for most in (510, 512):
        run = tmp_path / f"{most}"
        done = qed(name, "--tasks", tmp_path / "data.jsonl", *own, "--sampling.max_tokens", most, "--out", run)
        assert done.code == 0, done.err
        (left_out,) = (event for event in read_lines(run / "events.jsonl") if event["event"] == "prompts_too_long")
        assert (left_out["left_out"], left_out["limit"]) == (1, 512)
        assert "the prompt is longer than 512 tokens, the model's window." in done.out
    (tmp_path / "test.jsonl").write_text(json.dumps({"question": "1 + 1?", "answer": "2"}))
    evaluated = ["--evaluation.tasks", tmp_path / "test.jsonl", "--sampling.max_tokens", 512, "--out", tmp_path / "e"]
    done = qed(name, "--tasks", tmp_path / "data.jsonl", *own, *evaluated)
    if name == "reward-model":
        assert done.code == 0, "it writes no answers"
    else:
        assert_refused(done, 2, "sampling.max_tokens=512 leaves no room")


def test_a_prompt_longer_than_the_window_is_counted(qed: Callable[..., Any], tmp_path: Path) -> None:
    rows = [{"question": f"{number}+1?", "answer": f"#### {number + 1}"} for number in range(40)]
    rows += [{"question": "long " * 600 + str(number), "answer": "#### 1"} for number in range(3)]
    (tmp_path / "mixed.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    arguments = ["grpo", "--tasks", tmp_path / "mixed.jsonl", "--prompt", "think_answer", *TINY, "--steps", 1]
    done = qed(*arguments, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    left_out = [
        event for event in read_lines(tmp_path / "run" / "events.jsonl") if event["event"] == "prompts_too_long"
    ]
    assert sum(event["left_out"] for event in left_out) == 3
    assert "the prompt is longer than 508 tokens" in done.out
    done = qed(*arguments, "--sampling.max_tokens", 508, "--out", tmp_path / "none")
    assert_refused(done, 3, "No training problem fits", "window leaves 4 tokens")
    for most in (512, 100_000):
        done = qed(*arguments, "--sampling.max_tokens", most, "--out", tmp_path / f"{most}")
        assert_refused(done, 2, f"sampling.max_tokens={most} leaves no room for a prompt in the model's window of 512 ")
        assert "longer than" not in done.out + done.err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["luffy", "--prompt", "r1_zero"], 3, ["written answer", "solution", "qed dr-grpo"]),
        (["rl-sft", "--prompt", "r1_zero"], 3, ["written answer"]),
        (["dapo", "--reward", "length"], 2, ["dapo", "data.reward=length", "--reward auto,length"]),
        (["expert-iteration", "--reward", "0.5*length"], 2, ["judges no answer"]),
        (["grpo", "--reward", "length", "--sampling.curriculum", "thompson"], 2, ["curriculum=thompson needs"]),
        (["grpo", "--sampling.mix", "summs=2"], 2, ["no training problem has the source 'summs'", "'sums'"]),
        (["grpo", "--sampling.mix", "sums=0"], 2, ["every source of the training problems has weight 0"]),
        (["grpo", "--sampling.curriculum", "difficulty"], 3, ["orders by the column", "sampling.curriculum_column"]),
        (["ppo", "--algorithm.critic.start", "nowhere/x"], 3, ["algorithm.critic.start: ", "nowhere/x"]),
        (["ppo", "--algorithm.critic.start", "new:tiny"], 2, ["algorithm.critic.start cannot be new:tiny"]),
        (["opd"], 2, ["opd learns from a teacher, but algorithm.teacher is not set"]),
    ],
)
def test_what_an_algorithm_cannot_learn_from_is_refused(
    qed: Callable[..., Any], tmp_path: Path, arguments: list[str], code: int, words: list[str]
) -> None:
    """Groups without a written answer to give, rewards that do not say which answers are right, wrong names.

    A dry run says the same; what can be known before the policy is complete leaves no folder.
    """
    file = tmp_path / "sums.jsonl"
    rows = [{"question": f"What is {number} + 1?", "answer": str(number + 1)} for number in range(20)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    arguments = [*arguments, "--tasks", file, "--steps", 1, "--model", "new:tiny", "--out", tmp_path / "run"]
    for more in (["--dry-run"], []):
        done = qed(*arguments, *more)
        assert done.code == code, done.err
        assert all(word in done.err for word in words), done.err
    assert (tmp_path / "run").exists() == ("written answer" in words)


def test_a_folder_that_exists_is_refused(qed: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    for flag in ([], ["--overwrite"], ["--resume"]):
        assert_refused(qed("grpo", "--out", tmp_path, *TINY, *flag), 2, str(tmp_path))
    assert (tmp_path / "mine.txt").read_text() == "precious"
    run, file = tmp_path / "run", tmp_path / "sums.jsonl"
    file.write_text('{"question": "What is 1 + %d?", "answer": "2"}\n' * 20 % tuple(range(20)), encoding="utf-8")
    failed = qed("luffy", "--out", run, "--model", "new:tiny", "--tasks", file, "--prompt", "r1_zero")
    assert (failed.code, (run / "settings.yaml").is_file()) == (3, True), failed.err
    assert_refused(qed("grpo", "--out", run, *TINY), 2, "has finished no step: replace it with --overwrite")
    assert qed("grpo", "--out", run, *TINY, "--overwrite").code == 0
    before = (run / "metrics.jsonl").read_bytes()
    assert_refused(qed("grpo", "--out", run, *TINY), 2, "--resume", "--overwrite")
    assert (run / "metrics.jsonl").read_bytes() == before
    assert qed("grpo", "--out", run, *TINY, "--overwrite", "--steps", 1).code == 0
    assert {row["step"] for row in read_lines(run / "metrics.jsonl")} == {0, 1}


@pytest.mark.parametrize("full", ["rollouts/", "metrics.jsonl", "eval/"])
def test_a_full_disk_stops_cleanly(
    qed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
    """The write of step 2 fails half way: step 1 stays readable, no half file is left, and the run can go on."""
    run, write = tmp_path / "run", run_files.write_bytes

    def filling(path: Path, content: bytes, append: bool = False) -> None:
        relative = path.relative_to(run).as_posix()
        second = b'"step": 2' in content if full == "metrics.jsonl" else "step_000002" in relative
        if relative.startswith(full) and second:
            write(path, content[: len(content) // 2], append)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, content, append)

    arguments = ["grpo", "--out", run, *TINY, "--run.save_every", 1, "--evaluation.every", 1]
    with monkeypatch.context() as patch:
        patch.setattr(run_files, "write_bytes", filling)
        assert_refused(qed(*arguments), 1, "No space left on device", "run.save_rollouts=false", "--resume")
    assert "Traceback" in (run / "logs" / "attempt_1" / "main.log").read_text()
    assert {row["step"] for row in read_lines(run / "metrics.jsonl")} >= {0, 1}
    assert len(read_lines(run / "rollouts" / "step_000001.jsonl.zst")) == 4
    assert not list(run.rglob("*.part"))
    assert qed(*arguments, "--resume").code == 0
    assert sorted({row["step"] for row in read_lines(run / "metrics.jsonl")}) == [0, 1, 2, 3]


@pytest.mark.parametrize(("code", "first"), [(errno.ENOSPC, "Free some space"), (errno.EROFS, "Make it writable")])
def test_an_evaluation_that_cannot_be_written_is_repeated(
    qed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, first: str
) -> None:
    def refuse(path: Path, *_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr(Path, "replace", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    done = qed("evaluate", "--model", "new:tiny", "--tasks", "arithmetic", "--limit", 2, "--out", tmp_path / "out")
    assert_refused(done, 1, f"{os.strerror(code)}. Everything written before is complete. {first}, and run the same")
    assert "save_rollouts" not in done.err
    assert ".part" not in done.err


def test_a_checkpoint_that_is_damaged_is_passed_over(qed: Callable[..., Any], tmp_path: Path) -> None:
    run = tmp_path / "run"
    arguments = ["grpo", "--out", run, *TINY, "--run.save_every", 1]
    assert qed(*arguments).code == 0
    weights = run / "checkpoints" / "step_000003" / "hf" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    done = qed(*arguments, "--resume")
    assert done.code == 0, done.err
    assert "step_000002" in done.out
    assert weights.read_bytes() == whole, "the damaged step is made again, bit by bit"
    rejected = [event for event in read_lines(run / "events.jsonl") if event["event"] == "checkpoint_rejected"]
    assert "model.safetensors is damaged" in rejected[0]["reason"]


def test_a_path_without_a_model_is_refused_before_the_hub_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that may be one of the hub is not, also where a folder has its owner's name."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=r"no model folder runs/none\. There is no folder runs either, relative to "):
        require_folder("runs/none")
    for name in ("grpo--a", "sft--b", "Qwen"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    with pytest.raises(ModelError, match=r"no model folder runs/none\. runs has Qwen, grpo--a, sft--b\."):
        require_folder("runs/none")
    with pytest.raises(ModelError, match=r"no model folder runs/sft--c\. Did you mean 'sft--b'\?"):
        require_folder("runs/sft--c")
    with pytest.raises(ModelError, match=r"no model folder runs/Qwen/hf\. runs/Qwen contains no folders\."):
        require_folder("runs/Qwen/hf")
    (tmp_path / "Qwen").mkdir()
    for name in ("runs/Qwen", "Qwen/Qwen3-8B", "gpt2"):
        require_folder(name)


def test_a_run_goes_on_with_data_that_was_moved(qed: Callable[..., Any], tmp_path: Path) -> None:
    """Resumed, it says how: named by the command line or by its settings.yaml, the file is not there any more."""
    file, moved, run = tmp_path / "old.jsonl", tmp_path / "new.jsonl", tmp_path / "run"
    file.write_text("".join(json.dumps({"question": f"{n} + 7?", "answer": str(n + 7)}) + "\n" for n in range(30)))
    command = ["grpo", "--model", "new:tiny", *TINY, "--out", run]
    assert_refused(qed(*command, "--tasks", moved), 2, "There is no file")
    qed(*command, "--tasks", file)
    file.rename(moved)
    change = ("--data.tasks NEW --allow-change data.tasks.",)
    assert_refused(qed(*command, "--tasks", file, "--steps", 4, "--resume"), 2, "moved since the run began", *change)
    assert_refused(qed("grpo", "--out", run, "--resume"), 2, "settings.yaml", *change)
    assert_refused(
        qed(*command, "--tasks", moved, "--evaluation.tasks", file, "--resume"), 2, "path: --evaluation.tasks NEW."
    )
    done = qed("grpo", "--out", run, "--resume", "--data.tasks", moved, "--allow-change", "data.tasks")
    assert done.code == 0, done.err
