"""F1 and L1: invalid settings, and the command line; P1 and P2: keys and pickles."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from faults_parts.rival import Ended, Finding, Rival, cut, ending, resumed

# In the right format, but invalid.
KEYS = {"HF_TOKEN": "hf_" + "QedBenchmarkNotAKey" + "0" * 15, "WANDB_API_KEY": "0123456789abcdef" * 2 + "01234567"}
REWARD = """def letters(completions, **_):
    return [len(set(text)) / 8 for text in completions]
"""
GIVEN = "hf_" + "QedBenchmarkArgument" + "1" * 14


def asked(rival: Rival, out: Path) -> list[str]:
    """Return the arguments of a valid run."""
    work = rival.place / "work"
    work.mkdir(exist_ok=True)
    (work / "letters.py").write_text(REWARD, encoding="utf-8")
    data = rival.place / "data"
    data.mkdir(exist_ok=True)
    rows = "".join(json.dumps({"prompt": f"what is {number} + 1?"}) + "\n" for number in range(8))
    (data / "train.jsonl").write_text(rows, encoding="utf-8")
    told = {
        "model_name_or_path": rival.model,
        "dataset_name": data,
        "reward_funcs": "letters.letters",
        "output_dir": out,
        "max_steps": 1,
        "per_device_train_batch_size": 4,
        "num_generations": 2,
        "max_completion_length": 8,
        "use_cpu": "true",
        "bf16": "false",
        "report_to": "none",
    }
    return ["grpo", *(part for name, value in told.items() for part in (f"--{name}", str(value)))]


def f1(rival: Rival) -> Iterator[Finding]:
    """Make mistakes on the command line and in a file, and use what looks like a mistake."""
    good = rival.command(*asked(rival, rival.fresh()))
    yield Finding("F1", "nothing wrong", ending(good), good)
    for name, option, value in (
        ("an unknown option", "colour", "blue"),
        ("a near miss", "leraning_rate", "1e-6"),
        ("a wrong type", "num_generations", "many"),
        ("beta negative", "beta", "-0.1"),
        ("learning_rate negative", "learning_rate", "-1"),
    ):
        end = rival.command(*asked(rival, rival.fresh()), f"--{option}", value)
        yield Finding("F1", f"{name}, --{option} {value}", _named(end, option), end, _about(end))
    for line in ("learning_rate: 1e-6", "leraning_rate: 0.1", "num_generations: many"):
        file = rival.fresh("settings").with_suffix(".yaml")
        file.write_text(line + "\n", encoding="utf-8")
        end = rival.command(*_without(asked(rival, rival.fresh()), line), "--config", str(file))
        yield Finding("F1", f"in YAML, {line}", _named(end, line.partition(":")[0]), end, _about(end))


def _without(arguments: list[str], line: str) -> list[str]:
    """Return the arguments without the one that a file sets."""
    name = "--" + line.partition(":")[0]
    if name not in arguments:
        return arguments
    place = arguments.index(name)
    return arguments[:place] + arguments[place + 2 :]


def _named(end: Ended, option: str) -> str:
    named = option.replace("_", " ") in end.last.replace("_", " ")
    names = "its error names it" if named else "its error does not name it"
    return f"{_how(end)}, {names if end.code else 'accepted'}, {end.seconds:.1f} s"


def _how(end: Ended) -> str:
    return f"exit code {end.code}, {'a traceback' if end.traceback else 'no traceback'}"


def _about(end: Ended) -> dict[str, object]:
    return {"lines": len(end.lines), "proposes": "did you mean" in end.text.lower()}


def l1(rival: Rival) -> Iterator[Finding]:
    """Run the command line without training."""
    good = asked(rival, rival.fresh())
    bare = ["grpo", "--use_cpu", "true", "--bf16", "false"]
    for name, arguments in (
        ("trl --help", ["--help"]),
        ("trl", []),
        ("trl grpo --help", ["grpo", "--help"]),
        ("trl grpo", ["grpo"]),
        (f"trl {' '.join(bare)}", bare),
        ("trl grpo --config /no/such.yaml", ["grpo", "--config", "/no/such.yaml"]),
        ("a model that does not exist", [*good, "--model_name_or_path", "/no/such/model"]),
        ("a dataset that does not exist", [*good, "--dataset_name", "/no/such/data"]),
        ("trl no-such-command", ["no-such-command"]),
    ):
        end = rival.command(*arguments)
        yield Finding("L1", name, f"{_how(end)}, {end.seconds:.1f} s", end, {"lines": len(end.lines)})


def p1(rival: Rival) -> Iterator[Finding]:
    """Look for keys from the environment and from an argument in files and logs."""
    out = rival.fresh()
    end = rival.run(out, environment=KEYS)
    yield Finding("P1", "keys in the environment", _leaks(out, end, list(KEYS.values())), end)
    out = rival.fresh()
    end = rival.run(out, config={"hub_token": GIVEN})
    yield Finding("P1", "GRPOConfig(hub_token=...)", _leaks(out, end, [GIVEN]), end)
    out = rival.fresh()
    end = rival.command(*asked(rival, out), "--hub_token", GIVEN)
    yield Finding("P1", "trl grpo --hub_token ...", _leaks(out, end, [GIVEN]), end)
    out = rival.fresh()
    end = rival.command(*asked(rival, out), "--hub_token", GIVEN, "--max_steps", "many")
    yield Finding("P1", "the same beside a mistake", _leaks(out, end, [GIVEN]), end)


def _leaks(out: Path, end: Ended, keys: list[str]) -> str:
    """Name the files that contain a key, and the log if it does."""
    files = sorted(path for path in out.rglob("*") if path.is_file())
    found = {path.name for path in files if any(key.encode() in path.read_bytes() for key in keys)}
    found |= {"the log"} if any(key in end.text for key in keys) else set()
    return f"in {', '.join(sorted(found))}" if found else f"in none of {len(files)} files, nor the log"


def p2(rival: Rival) -> Iterator[Finding]:
    """Load weights from a pickle, from a malicious pickle, and from one in a checkpoint."""
    pickled = rival.make_model("pickled", pickled=True)
    end = rival.run(rival.fresh(), model=str(pickled))
    outcome = "loaded" if end.code == 0 else ending(end)
    yield Finding("P2", "a model with pytorch_model.bin alone", outcome, end, {"said": rival.unusual(end)[:6]})
    hostile, mark = rival.place / "hostile", rival.place / "mark"
    shutil.copytree(pickled, hostile)
    rival.made(hostile=str(hostile / "pytorch_model.bin"), mark=str(mark))
    end = rival.run(rival.fresh(), model=str(hostile))
    yield Finding("P2", "a hostile pytorch_model.bin", _ran(end, mark), end)
    whole = rival.whole()
    for file in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"):
        out = cut(whole, rival.fresh(), 4)
        rival.made(hostile=str(out / "checkpoint-4" / file), mark=str(mark))
        outcome, end, figures = resumed(rival, out, whole)
        told = _ran(end, mark) if end.code else f"not read; {outcome}"
        yield Finding("P2", f"a hostile {file} in a checkpoint", told, end, figures)


def _ran(end: Ended, mark: Path) -> str:
    ran = mark.exists()
    mark.unlink(missing_ok=True)
    return f"its code {'ran' if ran else 'did not run'}; {ending(end)}"
