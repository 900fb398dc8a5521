"""Settings in the parts of an algorithm: a path, a short name where it means one setting, and one key for both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from qed.algorithms.dapo import Dapo
from qed.algorithms.grpo import Grpo
from qed.algorithms.luffy import Luffy
from qed.algorithms.parts.guidance import ExpertPrefix
from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.config import plugins
from qed.config.changes import list_changes
from qed.config.field_names import (
    ALIASES,
    changed_fields,
    find_short_names,
    flatten_fields,
    replace_fields,
)
from qed.config.plugins import load_algorithm
from qed.config.resolve import read_sources, resolve_settings
from qed.config.values import dump_settings

FAMILY = [
    name for name in sorted(plugins.list_leaves("algorithms")) if issubclass(load_algorithm(name), PolicyGradient)
]
Write = Callable[..., str]
Refused = Callable[..., str]
Run = Callable[..., tuple[int, str, str]]

pytestmark = pytest.mark.usefixtures("elsewhere")

# Settings as they were written before they stood in parts, with values that are nobody's default.
FLAT: dict[str, Any] = {
    "estimator": "leave_one_out",
    "normalize_std": False,
    "std_epsilon": 0.01,
    "whiten": True,
    "dynamic_sampling": True,
    "max_rounds": 3,
    "mask_truncated": True,
    "surrogate": "gspo",
    "clip_low": 0.11,
    "clip_high": 0.22,
    "clip_dual": 3.0,
    "ratio_clamp": 20.0,
    "cispo_clip": "trl",
    "sapo_temperatures": [1.5, 2.5],
    "correction": "token_truncate",
    "correction_low": 0.5,
    "correction_high": 1.5,
    "correction_normalize": True,
    "rejection": "token_k1",
    "rejection_low": 0.6,
    "rejection_high": 1.6,
    "offpolicy_limit": 0.3,
    "kl": 0.2,
    "kl_estimator": "k2",
    "kl_target": 0.4,
    "reference_every": 7,
    "entropy": 0.003,
    "entropy_target": 0.6,
    "top_entropy": 0.7,
}


def algorithm_of(command: str, *arguments: str) -> Any:
    return resolve_settings(command, list(arguments)).settings.algorithm  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--algorithm.clip_high", "0.3", "--algorithm.surrogate", "gspo", "--algorithm.correction-high=3"],
        ["--algorithm.surrogate.clip-high=0.3", "--algorithm.surrogate.kind", "gspo", "algorithm.correction.high=3"],
        ["algorithm: {clip_high: 0.3, surrogate: gspo, correction_high: 3}"],
        ["algorithm: {surrogate: {clip_high: 0.3, kind: gspo}, correction: {high: 3}}"],
        ["algorithm.surrogate: gspo\nalgorithm.surrogate.clip_high: 0.3\nalgorithm: {correction.high: 3}"],
        [
            "algorithm: {surrogate: {clip_high: 9}}",
            "algorithm.clip_high=0.3",
            "algorithm.surrogate=gspo",
            "algorithm.correction_high=3",
        ],
    ],
)
def test_both_names_mean_a_setting(write: Write, arguments: list[str]) -> None:
    given = [write(argument) if ": " in argument else argument for argument in arguments]
    resolved = resolve_settings("grpo", given)
    algorithm: Any = resolved.settings.algorithm  # type: ignore[union-attr]
    assert (algorithm.surrogate.clip_high, algorithm.surrogate.kind, algorithm.correction.high) == (0.3, "gspo", 3)
    assert not resolved.origins["algorithm.clip_high"].startswith("default")
    assert resolved.origins["algorithm.clip_low"] == "default"


@pytest.mark.parametrize("command", FAMILY)
def test_every_name_of_every_setting_means_it(command: str) -> None:
    table = read_sources(command, []).table
    for name, key in table.names.items():
        assert table.expand_key(name) == (key,)
        assert table.expand_key(key) == (key,)
    assert set(find_short_names(flatten_fields(load_algorithm(command)()))) >= set(FLAT)
    shown = {key for key in table.settings if key.startswith("algorithm.")}
    assert shown >= {f"algorithm.{name}" for name in FLAT}


def test_a_short_name_means_one_setting(error: Refused) -> None:
    """traces is in one part of luffy alone, most in two, and rl_sft has but one of these."""
    assert algorithm_of("luffy", "--algorithm.traces", "2").guidance.traces == 2
    assert algorithm_of("luffy", "--algorithm.shaping", "logp").shaping.kind == "logp"
    assert algorithm_of("rl_sft", "--algorithm.least=0.4", "--algorithm.most=0.5").guidance.most == 0.5
    message = error("luffy", "--algorithm.most", "0.5")
    assert "'--algorithm.guidance.most' or '--algorithm.shaping.most'" in message


def test_two_names_of_a_setting_with_two_values_are_refused(error: Refused, write: Write) -> None:
    config = write("algorithm:\n  clip_high: 0.1\n  surrogate:\n    clip_high: 0.3\n")
    message = error("grpo", config)
    assert "x.yaml:2: algorithm.clip_high = '0.1'" in message
    assert "x.yaml:4: algorithm.surrogate.clip_high = '0.3'" in message
    message = error("grpo", "--algorithm.correction.low", "0.2", "algorithm.correction_low=0.3")
    assert "--algorithm.correction.low = '0.2'" in message
    assert "algorithm.correction_low = '0.3'" in message
    same = write("algorithm: {clip_high: 0.30, surrogate: {clip_high: 0.3}}")
    assert algorithm_of("grpo", same).surrogate.clip_high == 0.3
    assert algorithm_of("grpo", same, "--algorithm.clip_high", "0.5").surrogate.clip_high == 0.5


def test_a_section_with_nothing_in_it_says_nothing(write: Write) -> None:
    assert algorithm_of("gspo", write("algorithm:\n  surrogate:\n")) == load_algorithm("gspo")()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--algorithm.regularizer.kl", "-1"], "command line: algorithm.kl must be a finite number, 0 or more."),
        (["--algorithm.guidance.traces", "-3"], "command line: algorithm.guidance.traces must be -1 or more."),
        (["--algorithm.mixture.given_weight", "nan"], "algorithm.mixture.given_weight must be a number, "),
        (["--algorithm.own_weight", "inf"], "command line: algorithm.mixture.own_weight must be a finite number."),
        (["--algorithm.given_advantage", "-inf"], "algorithm.mixture.given_advantage must be a finite number."),
        (["--algorithm.shaping.gamma", "inf"], "algorithm.shaping.gamma must be a finite number above 0."),
        (["--algorithm.shaping.weight", "inf"], "algorithm.shaping.weight must be a finite number."),
        (["--algorithm.shaping.exponent", "inf"], "algorithm.shaping.exponent must be a finite number."),
        (["--algorithm.surrogate.clip_hihg", "1"], "Did you mean '--algorithm.surrogate.clip-high'?"),
        (["--algorithm.correction.hihg", "1"], "Did you mean '--algorithm.correction.high'?"),
        (["--correction-high", "1"], "Did you mean '--algorithm.correction-high'?"),
        (["--algorithm.selection", "1"], "It is a section with the settings algorithm.dynamic_sampling, "),
        (
            ["--algorithm.mixture.statistics=split", "--algorithm.whiten"],
            "command line: Statistics over only a group's",
        ),
        (["--algorithm.rejection", "none,token_k1"], "must name each rejection once; none cannot be combined"),
        (["--algorithm.rejection_high", "1,2"], "must hold one number, or one for each of the 1"),
    ],
)
def test_mistakes_are_told_by_the_key(error: Refused, arguments: list[str], said: str) -> None:
    assert said in error("luffy", *arguments)


def test_a_mistake_in_a_phase_is_told_with_the_phase(error: Refused) -> None:
    asked = ["--rl.method", "luffy", "--rl.algorithm.guidance.traces", "-3"]
    assert error("pipeline", *asked) == "command line: rl.algorithm.guidance.traces must be -1 or more."
    asked = ["--rl.algorithm.surrogate.clip_low", "3"]
    assert error("pipeline", *asked) == "command line: rl.algorithm.clip_low must lie in [0, 1]."


def test_several_rejections_at_once() -> None:
    """verl's names are read too; bounds are shared, or one for each."""
    found = algorithm_of("grpo", "--algorithm.rejection", "token_k1,seq_mean_k3", "--algorithm.rejection_high", "2,0.1")
    assert found.correction.bounds == [("token_k1", 0.5, 2.0), ("sequence_mean_k3", 0.5, 0.1)]
    one = algorithm_of("grpo", "--algorithm.rejection", "sequence_mean_k3", "--algorithm.rejection_high", "0.1")
    assert one.correction.bounds == [("sequence_mean_k3", 0.5, 0.1)]
    assert one.needs_old_logps
    assert not algorithm_of("grpo", "--algorithm.rejection", "none").needs_old_logps


# Defaults of leaves


def test_help_shows_the_defaults_of_a_leaf_under_its_parts(run: Run) -> None:
    told = " ".join(run("dapo", "--help")[1].split())
    part = told.partition("algorithm.surrogate: The policy loss and its bounds")[2]
    assert "(default: 0.28)" in part.partition("--algorithm.clip-high")[2].partition("--algorithm")[0]
    assert "(default: true)" in told.partition("--[no-]algorithm.dynamic-sampling")[2].partition("--algorithm")[0]


OWN = """
from dataclasses import dataclass
from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.algorithms.parts.surrogates import Surrogate

@dataclass(frozen=True)
class Mine(PolicyGradient):
    \"\"\"Mine.\"\"\"
    FIELD
"""


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("clip_high: float = 0.3", "write surrogate: Surrogate = Surrogate(clip_high=...)"),
        ("correction_high: float = 0.3", "write correction: Correction = Correction(high=...)"),
        ("surrogate: Surrogate = 'gspo'", "Write surrogate: Surrogate = Surrogate(...) with values"),
    ],
)
def test_a_default_that_would_be_read_by_nobody_is_refused(error: Refused, write: Write, field: str, said: str) -> None:
    assert said in error(write(OWN.replace("FIELD", field), "mine.py"))


def test_a_users_own_algorithm_sets_defaults_of_parts(write: Write) -> None:
    field = "surrogate: Surrogate = Surrogate(kind='gspo', clip_high=0.3)"
    mine = write(OWN.replace("FIELD", field), "mine.py")
    found = algorithm_of(mine, "--algorithm.clip_low", "0.1")
    assert (found.surrogate.kind, found.surrogate.clip_low, found.surrogate.clip_high) == ("gspo", 0.1, 0.3)


# Settings and states that were written before there were parts


def test_flat_settings_of_former_runs_load_and_are_the_same_run(write: Write, elsewhere: Any) -> None:
    saved = yaml.dump({"method": "grpo", "algorithm": FLAT})
    found = resolve_settings("grpo", [write(saved)]).settings
    assert found.algorithm == Grpo(**FLAT)  # type: ignore[union-attr]
    # As a former run has written it: every setting, those of the algorithm side by side.
    whole = yaml.safe_load(dump_settings(found))
    whole["algorithm"] = {"average": "sequence", "average_length": 0, "scale": "qed"} | {
        name: values(found.algorithm)[path]  # type: ignore[union-attr]
        for name, path in find_short_names(flatten_fields(found.algorithm)).items()  # type: ignore[union-attr]
    }
    whole["algorithm"] |= {"rejection": "token_k1", "rejection_low": 0.6, "rejection_high": 1.6}
    (elsewhere / "settings.yaml").write_text(yaml.dump(whole))
    assert list_changes(elsewhere / "settings.yaml", found) == ([], [])
    assert resolve_settings("grpo", ["settings.yaml"]).settings == found
    other = resolve_settings("grpo", [write(saved), "--algorithm.surrogate.clip_high", "0.9"]).settings
    told = ["algorithm.clip_high: 0.22 -> 0.9"]
    assert list_changes(elsewhere / "settings.yaml", other) == (told, told)
    for name in ("algorithm.clip_high", "algorithm.surrogate.clip_high"):
        allowed = resolve_settings("grpo", ["--resume", "--allow-change", name]).flags.allow_change
        assert list_changes(elsewhere / "settings.yaml", other, allowed) == (told, [])


def test_a_setting_that_a_saved_file_does_not_have_counts_as_its_default(elsewhere: Any) -> None:
    found = resolve_settings("luffy", []).settings
    whole = yaml.safe_load(dump_settings(found))
    del whole["learner"]["passes"], whole["data"]["reward"], whole["algorithm"]["surrogate"]["clip_low"]
    (elsewhere / "settings.yaml").write_text(yaml.dump(whole))
    assert list_changes(elsewhere / "settings.yaml", found) == ([], [])
    other = resolve_settings("luffy", ["--learner.passes", "3"]).settings
    told = ["learner.passes: 1 -> 3"]
    assert list_changes(elsewhere / "settings.yaml", other) == (told, told)
    pipeline = resolve_settings("pipeline", []).settings
    whole = yaml.safe_load(dump_settings(pipeline))
    del whole["rl"]["algorithm"]["surrogate"], whole["sft"]["learner"]["packing"], whole["skip_rl"]
    (elsewhere / "settings.yaml").write_text(yaml.dump(whole))
    assert list_changes(elsewhere / "settings.yaml", pipeline) == ([], [])


def values(algorithm: Any) -> dict[str, Any]:
    return {
        path: list(value) if isinstance(value, tuple) else value for path, value in flatten_fields(algorithm).items()
    }


def test_a_sweep_names_a_setting_by_its_key(run: Run, recipes: Any) -> None:
    for name in ("algorithm.surrogate.clip_high", "algorithm.clip_high"):
        recipes.calls.clear()
        code, out, _ = run("grpo", f"--sweep={name}=0.1,0.3", "--sweep=algorithm.surrogate=clip,gspo", "--out=o")
        assert code == 0
        folders = [settings.run.out for _, settings, _ in recipes.calls]
        assert folders[0] == "o/clip_high=0.1,surrogate=clip"
        assert [settings.algorithm.surrogate.clip_high for _, settings, _ in recipes.calls] == [0.1, 0.1, 0.3, 0.3]
        assert out.split()[:2] == ["algorithm.clip_high", "algorithm.surrogate"]


def test_coefficients_that_a_run_adapted_are_saved_by_path_and_read_by_any_name() -> None:
    begun = Grpo(kl=0.1, kl_target=0.1, entropy=0.01, entropy_target=0.5)
    now = begun.adapt({"kl/ref": 0.3, "train/rows": 100, "policy/entropy": 0.9})
    saved = changed_fields(now, begun)
    assert set(saved) == {"regularizer.kl", "regularizer.entropy", "regularizer.entropy_on"}
    assert replace_fields(begun, saved) == now
    former = {path.rpartition(".")[2]: value for path, value in saved.items()}
    assert replace_fields(begun, former) == now
    assert replace_fields(begun, {}) == begun


def test_settings_by_any_name_in_python() -> None:
    built = Dapo(**{"surrogate.clip_low": 0.1}, correction="token_mask", max_rounds=4)
    assert (built.surrogate.clip_low, built.surrogate.clip_high) == (0.1, 0.28), "the others are those of the leaf"
    assert (built.selection.dynamic_sampling, built.selection.max_rounds) == (True, 4)
    assert built.correction.kind == "token_mask"
    mixed = Luffy(guidance=ExpertPrefix(traces=2), **{"guidance.least": 0.5}, vespo_shape=[1, 2, 3, 4])
    assert (mixed.guidance, mixed.surrogate.vespo_shape) == (ExpertPrefix(traces=2, least=0.5), (1, 2, 3, 4))
    with pytest.raises(TypeError, match="clip_hihg"):
        Grpo(clip_hihg=0.1)


def test_the_table_of_aliases_names_settings() -> None:
    assert set(ALIASES) <= set(flatten_fields(Grpo()))
