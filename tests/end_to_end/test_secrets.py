"""No key reaches a file that a run leaves, or the terminal; what a model writes commands neither terminal nor sheet."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qed.data.sources.writing import Writer
from qed.guards.redaction import REDACTED, redact, strip_control

HEX = "0123456789abcdef0123456789abcdef01234567"
# A text as it may stand anywhere, and the part of it that nobody may read.
SECRETS = {
    "hugging face": ("hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345", ""),
    "openai": ("sk-proj-AbCdEfGhIjKlMnOpQrStUvWx", ""),
    "github": ("ghp_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789", ""),
    "github, fine": ("github_pat_11ABCDEFG0abcdefghijkl_mnop", ""),
    "gitlab": ("glpat-AbCdEfGhIjKlMnOpQrSt", ""),
    "slack": ("xoxb-123456789012-abcdefGHIJ", ""),
    "google": ("AIzaSyA1234567890abcdefghijklmnopqrstuv", ""),
    "aws": ("AKIAIOSFODNN7EXAMPLE", ""),
    "jwt": ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.abcDEF123456_-xyz", ""),
    "address": ("https://anna:geheim99@example.org/data", "geheim99"),
    "address without a name": ("https://AbCdEfGhIjKlMnOpQrSt@example.org/data", "AbCdEfGhIjKlMnOpQrSt"),
    "question": ("https://example.org/data?part=1&sig=AbCdEfGh1234", "AbCdEfGh1234"),
    "private key": ("-----BEGIN RSA PRIVATE KEY-----MIIEowIBAAKCAQEA-----END RSA PRIVATE KEY-----", "MIIEowIBAAKCAQEA"),
    "npm": ("npm_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789", ""),
    "wandb": (f"WANDB_API_KEY={HEX}", HEX),
    "bearer": ("Authorization: Bearer abcdef1234567890XYZ", "abcdef1234567890XYZ"),
    "aws secret": (
        "aws_secret_access_key = wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY",
        "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY",
    ),
    "password": ("password: hunter2hunter2", "hunter2hunter2"),
    "named key": ("--logger.api_key 0a1b2c3d4e5f6a7b", "0a1b2c3d4e5f6a7b"),
    "environment": ("so-ordinary-a-word", ""),
}
HIDDEN = {name: part or text for name, (text, part) in SECRETS.items()}
ORDINARY = (
    "commit 0123456789abcdef0123456789abcdef01234567",
    "sampling.max_tokens: 48, learner.tokens_per_microbatch=16384",
    "task-specific-and-risk-averse-answers-of-many-words",
    "https://example.org:8080/a@b?part=train and ssh://git@example.org/qed and mailto:anna@example.org",
    "The keyword argument token of a tokenizer, token: 17",
    "fingerprint 5d41402abc4b2a76b9719d911017c592",
)


@pytest.fixture(autouse=True)
def _in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SERVICE_TOKEN", SECRETS["environment"][0])


def test_the_shortest_password_is_redacted() -> None:
    assert redact("a://:x@") == f"a://:{REDACTED}@"


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("around", ["{}", "before {} after", '{{"x": "{}"}}', "a,{},b", "'{}'\n"])
def test_a_key_is_redacted_wherever_it_stands(name: str, around: str) -> None:
    told = redact(around.format(SECRETS[name][0]))
    assert HIDDEN[name] not in told
    assert REDACTED in told


@pytest.mark.parametrize("text", ORDINARY)
def test_what_is_no_key_stays(text: str) -> None:
    assert redact(text) == text


def test_the_name_of_a_tokenizer_is_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the model's in the run's settings, which a resumed run compares."""
    monkeypatch.setenv("TOKENIZER_NAME", "Qwen/Qwen2.5-0.5B")
    assert redact("name: Qwen/Qwen2.5-0.5B") == "name: Qwen/Qwen2.5-0.5B"


def test_no_file_of_a_run_holds_a_key(qed: Callable[..., Any], tmp_path: Path) -> None:
    """They come by the command line, by settings, by an error and its traceback, and by a worker's own words."""
    everything = " ".join(text for text, _ in SECRETS.values())
    reward = tmp_path / "mine.py"
    reward.write_text(f"def reward(rollout):\n    raise ValueError({everything!r})\n")
    run = tmp_path / "run"
    arguments = ["grpo", "--out", run, "--reward", reward, "--steps", 1, "--evaluation.problems", 2]
    # Options of another prompt are left alone, but they are settings.
    options = [f"boxed.key={text}" for text, _ in SECRETS.values() if "," not in text]
    arguments += ["--data.prompt_options", ",".join(options)]
    done = qed(*arguments)
    assert done.code == 1, done.err
    assert "The reward failed on all of" in done.err
    files = [path for path in run.rglob("*") if path.is_file() and "checkpoints" not in path.parts]
    names = {path.name for path in files}
    assert {"settings.yaml", "settings.origin.json", "env.json", "command.txt", "events.jsonl", "main.log"} <= names
    texts = {path.name: path.read_text(encoding="utf-8", errors="replace") for path in files}
    for sink, text in {**texts, "stdout": done.out, "stderr": done.err}.items():
        leaked = [name for name, part in HIDDEN.items() if part in text]
        assert not leaked, sink
    for sink in ("settings.yaml", "command.txt", "events.jsonl", "main.log"):
        assert REDACTED in texts[sink], sink


def test_the_card_and_the_report_hold_none_and_the_run_goes_on(qed: Callable[..., Any], tmp_path: Path) -> None:
    """The saved settings are redacted, and yet a run with the same ones is known as the same run."""
    run = tmp_path / "run"
    options = ",".join(f"boxed.key={text}" for text, _ in SECRETS.values())
    shared = ["grpo", "--out", run, "--sampling.problems_per_step", 2, "--sampling.group_size", 2]
    shared += ["--sampling.max_tokens", 4, "--evaluation.problems", 2, "--algorithm.entropy", 0.01]
    shared += ["--data.prompt_options", options]
    assert qed(*shared, "--steps", 1).code == 0
    for name in ("README.md", "report.html"):
        text = (run / name).read_text(encoding="utf-8")
        assert REDACTED in text
        assert not [secret for secret, part in HIDDEN.items() if part in text], name
    done = qed(*shared, "--steps", 2, "--resume")
    assert done.code == 0, done.err


HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202eabc\u200b\x00\r\x7f"


def test_a_terminal_is_not_commanded() -> None:
    assert strip_control(f"1{HOSTILE}2\n\t3") == "1[2J]0;owned31mabc2\n\t3"


def test_errors_and_explanations_show_text_as_text(qed: Callable[..., Any], tmp_path: Path) -> None:
    """A column's name in an error message, and an answer that qed grade explains, are somebody else's words."""
    file = tmp_path / "x.jsonl"
    file.write_text('{"\\u001b[2Jq": "1", "b": "2"}\n')
    done = qed("sft", "--tasks", file, "--out", tmp_path / "run")
    assert done.code == 3
    assert "[2Jq" in done.err
    assert "\x1b" not in done.err
    done = qed("grade", "--gold", "1", "--answer", "\x1b[2J1")
    assert "\x1b" not in done.out + done.err


@pytest.mark.parametrize("sign", ["=", "+", "-", "@", "\t", "\r"])
def test_a_spreadsheet_computes_nothing(tmp_path: Path, sign: str) -> None:
    with Writer(tmp_path / "rows.csv") as writer:
        writer.add({"text": f"{sign}HYPERLINK(1)", "n": 3})
    with (tmp_path / "rows.csv").open(newline="", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert row["text"].startswith("'")
    assert row["n"] == "3"
