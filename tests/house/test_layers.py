"""YAML files as they are written: numbers, booleans, lists, anchors, and whatever is broken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from qed.config import layers
from qed.config.phases import PipelineSettings
from qed.config.resolve import resolve_settings
from qed.errors import UsageError

Write = Callable[..., str]
Refused = Callable[..., str]

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.mark.parametrize(
    ("written", "meant"), [("1e-6", 1e-6), ("1E3", 1000.0), ("3", 3.0), ('"2e-5"', 2e-5), (".5", 0.5)]
)
def test_a_number_is_read_by_its_field(write: Write, written: str, meant: float) -> None:
    lr = resolve_settings("grpo", [write(f"learner: {{lr: {written}}}")]).settings.learner.lr  # type: ignore[union-attr]
    assert (lr, type(lr)) == (meant, float)


@pytest.mark.parametrize(
    ("word", "meant"),
    [("on", True), ("yes", True), ("True", True), ("1", True), ("off", False), ("NO", False), ("false", False)],
)
def test_yaml_booleans_are_booleans_only_for_boolean_fields(write: Write, word: str, meant: bool) -> None:
    resolved = resolve_settings(
        "grpo", [write(f"run: {{save_rollouts: {word}, out: {word}}}\nmodel: {{revision: {word}}}")]
    )
    assert resolved.settings.run.save_rollouts is meant
    assert (resolved.settings.run.out, resolved.settings.model.revision) == (word, word)


def test_octal_is_not_octal(write: Write) -> None:
    assert resolve_settings("grpo", [write("run: {seed: 010}")]).settings.run.seed == 10
    assert resolve_settings("grpo", [write("model: {revision: 010}")]).settings.model.revision == "010"


@pytest.mark.parametrize(("written", "hint"), [("8.0", "mean 8?"), ("1e3", "mean 1000?"), ("0x10", ""), ("1:30", "")])
def test_what_is_no_whole_number_is_refused(error: Refused, write: Write, written: str, hint: str) -> None:
    message = error("grpo", write(f"run:\n  seed: {written}"))
    assert message.startswith("x.yaml:2: run.seed must be a whole number, not ")
    assert hint in message


@pytest.mark.parametrize("written", ["", "~", "null", "{}"])
def test_a_setting_without_a_value_is_refused_and_an_empty_section_is_not(
    error: Refused, write: Write, written: str
) -> None:
    assert 'x.yaml:1: run.out must be a text; write "" for' in error("grpo", write(f"run: {{out: {written}}}"))
    assert "data.map must be a list of texts" in error("grpo", write(f"data: {{map: {written}}}"))
    assert resolve_settings("grpo", [write(f"run: {written}")]).settings == resolve_settings("grpo", []).settings


def test_an_empty_file_says_nothing(write: Write) -> None:
    assert (
        resolve_settings("grpo", [write("# nothing yet\n"), write("", "empty.yaml")]).settings
        == resolve_settings("grpo", []).settings
    )


def test_lists_are_written_in_several_ways(write: Write) -> None:
    for text in ("[a=b, c=d]", "a=b,c=d", "\n    - a=b\n    - 'c=d'"):
        assert resolve_settings("grpo", [write(f"data:\n  map: {text}")]).settings.data.map == ("a=b", "c=d")
    assert resolve_settings("grpo", [write("data: {map: 'a=b,c'}")]).settings.data.map == ("a=b,c",)


def test_nested_and_dotted_keys_mean_the_same(write: Write) -> None:
    nested = resolve_settings("grpo", [write("learner:\n  warmup-steps: 4\n")]).settings
    assert resolve_settings("grpo", [write("learner.warmup_steps: 4\n")]).settings == nested


def test_anchors_aliases_and_merges_work(write: Write) -> None:
    resolved = resolve_settings(
        "pipeline",
        [
            write(
                "sft:\n  learner: &base\n    steps: &n 7\n    lr: 1\nrl:\n  learner: {<<: *base, lr: 2}\nrun.seed: *n\n"
            )
        ],
    )
    assert isinstance(resolved.settings, PipelineSettings)
    assert (resolved.settings.rl.learner.steps, resolved.settings.rl.learner.lr) == (7, 2)
    assert resolved.settings.run.seed == 7
    assert resolved.origins["run.seed"] == "x.yaml:7"


def test_the_first_of_several_merged_mappings_wins(write: Write) -> None:
    text = "sft: {learner: &a {steps: 1}}\nrl: {learner: {<<: [*a, {steps: 2, warmup_steps: 3}]}}"
    resolved = resolve_settings("pipeline", [write(text)])
    assert resolved.settings.rl.learner.steps == 1  # type: ignore[union-attr]
    assert resolved.settings.rl.learner.warmup_steps == 3  # type: ignore[union-attr]


@pytest.mark.parametrize("text", ["run: &a {x: *a}", "run: &a\n  <<: *a\n", "run: {<<: 3}"])
def test_an_alias_that_cannot_end_is_refused(error: Refused, write: Write, text: str) -> None:
    assert error("grpo", write(text)).startswith("x.yaml:")


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("run:\n\tseed: 1\n", "x.yaml:2: ", "tab"),
        ("run: {seed: 1\nmodel: 2\n", "x.yaml:2: ", "not valid YAML"),
        ("run: 'a\n", "x.yaml:2: ", "not valid YAML"),
        ("run: *nobody\n", "x.yaml:1: ", "undefined alias"),
        ("a: 1\n---\nb: 2\n", "x.yaml:2: ", "not valid YAML"),
        ("- run\n", "x.yaml:1: ", "key: value"),
        ("just words\n", "x.yaml:1: ", "key: value"),
        ("? [run]\n: 1\n", "x.yaml:1: ", "plain word"),
        ("run: \x07\n", "x.yaml ", "character"),
        (f"run: 1\ndata: {'[' * 600}{']' * 600}\n", "x.yaml:2: ", "nested too deeply"),
        ("[" * 9_000, "x.yaml: ", "nested too deeply"),
        ("run: &a [*a]\n", "x.yaml:1: ", "nested too deeply"),
        ("data: {tasks: [{a: 1}]}", "x.yaml:1: ", "texts and numbers"),
    ],
)
def test_broken_yaml_is_one_sentence_with_its_line(
    error: Refused, write: Write, text: str, where: str, what: str
) -> None:
    message = error("grpo", write(text))
    assert message.startswith(where)
    assert what in message
    assert "\n" not in message


def test_a_file_that_cannot_be_read_is_named(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*arguments: Any, **options: Any) -> str:
        raise PermissionError(13, "Permission denied")

    config = write("run.seed: 1")
    monkeypatch.setattr(Path, "read_text", forbidden)
    with pytest.raises(UsageError, match=r"x\.yaml cannot be read: Permission denied"):
        layers.read_layers(Path(config))


def test_data_is_no_configuration(error: Refused, tmp_path: Path) -> None:
    """Files that a shell makes of a pattern, of which all but the first are words of their own."""
    (tmp_path / "b.jsonl").write_text('{"question": "1+1?", "answer": "2"}\n' * 2)
    message = error("grpo", "--tasks", "a.jsonl", "./b.jsonl")
    assert message.startswith("b.jsonl is a data file")
    assert "--tasks A,B or their folder" in message


def test_bytes_that_are_no_text_are_refused(error: Refused, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_bytes(b"run: \xff\xfe\n")
    assert "not UTF-8" in error("grpo", "x.yaml")


@pytest.mark.parametrize("second", ["learner:\n  lr: 2", "learner.lr: 2", "learner: {lr: 2}"])
def test_a_key_that_stands_twice_is_refused_with_both_lines(error: Refused, write: Write, second: str) -> None:
    message = error("grpo", write(f"learner:\n  lr: 1\n{second}\n"))
    assert "x.yaml:2" in message
    assert f"x.yaml:{4 if second.endswith('  lr: 2') else 3}: learner.lr is already set" in message


def test_reading_a_file_never_constructs_anything(error: Refused, write: Write) -> None:
    text = 'model: {name: !!python/object/apply:os.system ["touch owned"]}'
    assert "must be a text" in error("grpo", write(text))
    assert not Path("owned").exists()


@given(text=some.text(max_size=60))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_read_or_refused_with_the_file_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "any.yaml").write_text(text, encoding="utf-8", errors="replace")
    try:
        resolve_settings("grpo", ["any.yaml"])
    except UsageError as caught:
        assert "any.yaml" in str(caught)  # noqa: PT017 -- any text may also be fine
