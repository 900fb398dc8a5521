"""What a step tells about its sampler, the defaults for servers that are not exact, and where servers compute."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from making import make_model

from qed.config.changes import list_changes
from qed.config.keys import list_origins
from qed.config.resolve import resolve_settings
from qed.config.settings import LearnerSettings
from qed.config.values import dump_settings
from qed.errors import UsageError
from qed.loops import engine_defaults
from qed.loops.engine_defaults import KIND, ON_SERVERS, settle_engine_defaults
from qed.loops.mismatch import measure_sampler, read_figures
from qed.loops.server_places import choose_devices, describe_server, require_fit
from qed.loops.servers import starts_servers
from qed.rollout.sampler_check import Options, SamplerCheck, Tolerance, require_agreement
from qed.runs.run import Launch
from qed.sampling.server.dialect import Capabilities, Reader
from qed.training.learner import Learner
from qed.training.scoring import score_with
from qed.types import Problem, Rollout


class Remote:
    remote, exact_logps = True, True


def resolve(*arguments: str, command: str = "grpo") -> tuple[Any, Launch]:
    resolved = resolve_settings(command, ["--model", "some/model", *arguments])
    return resolved.settings, Launch(origins=list_origins(resolved.settings, resolved.origins))


@cache
def build_learner() -> Learner:
    settings, _ = resolve()
    return Learner(make_model(0, torch.float32), settings.algorithm, LearnerSettings())


def make_rows(count: int, **more: Any) -> list[Rollout]:
    return [
        Rollout(Problem(str(n), "", ""), (3, 4, 5), (6 + n, 7, 8, 1), (math.nan,) * 4, "", "stop", "policy", **more)
        for n in range(count)
    ]


@given(st.floats(-0.5, 0.5), st.integers(1, 9))
def test_the_gap_is_that_of_the_learner_before_the_update(shift: float, count: int) -> None:
    """Whether the step needs old log-probs or not; and tokens that nobody sampled do not count."""
    learner = build_learner()
    rows = make_rows(count, version=2)
    logps = score_with(learner.model, 1.0)(rows, torch.float32)
    shifted = [
        replace(row, logps=(math.nan, *(each + shift for each in own[1:])))
        for row, own in zip(rows, logps, strict=True)
    ]
    figures = measure_sampler(learner, Remote(), [shifted], 5)  # type: ignore[arg-type]
    learner.score(shifted, old=True)
    again = measure_sampler(learner, Remote(), [shifted], 5)  # type: ignore[arg-type]
    for name in ("mean", "p99", "max"):
        assert figures[f"sampler/logp_gap_{name}"] == pytest.approx(abs(shift), abs=1e-5)
        assert again[f"sampler/logp_gap_{name}"] == pytest.approx(abs(shift), abs=1e-5)
    assert figures["rollout/version_min"] == figures["rollout/version_max"] == 2
    assert figures["rollout/staleness_mean"] == 2
    assert all(row.old_logps is not None for row in shifted)


def test_a_sampler_of_this_process_that_is_exact_is_not_measured() -> None:
    sampler: Any = SimpleNamespace(exact_logps=True)
    assert measure_sampler(build_learner(), sampler, [make_rows(2)], 1) == {}
    assert read_figures(sampler) == {}


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (("--sampling.sampler", "vllm"), KIND),
        (("--sampling.sampler", "vllm", "--algorithm.correction", "none"), "none"),
        (("--sampling.sampler", "vllm", "--algorithm.correction", "sequence_mask"), "sequence_mask"),
        (("--sampling.sampler", "native", "--sampling.servers", "2"), "none"),
        ((), "none"),
    ],
)
def test_servers_that_are_not_exact_are_corrected_for_unless_the_user_says_otherwise(
    arguments: tuple[str, ...], kind: str
) -> None:
    said: list[str] = []
    console: Any = SimpleNamespace(say=said.append)
    run: Any = SimpleNamespace(event=lambda *_, **__: None)
    settings, launch = settle_engine_defaults(*resolve(*arguments), run, console)
    assert settings.algorithm.correction.kind == kind
    assert settings.algorithm.correction.high == 2
    chosen = launch.origins["algorithm.correction.kind"].startswith(ON_SERVERS)
    assert chosen == bool(said) == (kind == KIND)


def test_an_algorithm_without_a_correction_stays_as_it_is() -> None:
    settings, launch = resolve("--sampling.sampler", "vllm", command="expert_iteration")
    run: Any = None
    assert settle_engine_defaults(settings, launch, run, run) == (settings, launch)


def test_a_resumed_run_keeps_the_correction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on another engine: it would train with another loss from there on."""
    console: Any = SimpleNamespace(say=lambda line: None)
    run: Any = SimpleNamespace(event=lambda *_, **__: None, folder=tmp_path)
    settings, launch = settle_engine_defaults(*resolve("--sampling.sampler", "vllm"), run, console)
    (tmp_path / "settings.yaml").write_text(dump_settings(settings))
    (tmp_path / "settings.origin.json").write_text(json.dumps(dict(launch.origins)))
    monkeypatch.setattr(engine_defaults, "_find_inexact", lambda phase: "")
    given, again = resolve("--sampling.sampler", "vllm", "--sampling.memory_share", "0.5")
    kept, launched = settle_engine_defaults(given, replace(again, resume=True), run, console)
    assert kept.algorithm.correction.kind == KIND
    assert launched.origins["algorithm.correction.kind"].startswith(ON_SERVERS)
    told, refused = list_changes(tmp_path / "settings.yaml", kept)
    assert told == ["sampling.memory_share: 0.7 -> 0.5"]
    assert refused == []


def test_addresses_of_servers_may_change_when_a_run_is_resumed(tmp_path: Path) -> None:
    first, _ = resolve("--sampling.sampler", "server", "--sampling.url", "http://a:1")
    (tmp_path / "settings.yaml").write_text(dump_settings(first))
    moved, _ = resolve("--sampling.sampler", "server", "--sampling.url", "http://b:2,http://c:3")
    assert list_changes(tmp_path / "settings.yaml", moved)[1] == []
    other, _ = resolve("--sampling.sampler", "vllm")
    assert list_changes(tmp_path / "settings.yaml", other)[1] == ["sampling.sampler: server -> vllm"]


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        ((), 0),
        (("--sampling.servers", "2"), 2),
        (("--sampling.sampler", "vllm"), 1),
        (("--sampling.sampler", "vllm", "--sampling.servers", "3"), 3),
        (("--rollout.max_staleness", "1"), 1),
        (("--sampling.sampler", "server", "--sampling.url", "http://a:1"), 0),
    ],
)
def test_a_run_starts_the_servers_that_it_needs(arguments: tuple[str, ...], count: int) -> None:
    assert starts_servers(resolve(*arguments)[0]) == count


def place(count: int, *arguments: str, cards: int = 0, ranks: int = 1) -> list[list[str]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.cuda.device_count", lambda: cards)
        device = torch.device("cuda", 0) if cards else torch.device("cpu")
        return choose_devices(resolve(*arguments)[0], count, device, ranks)


def test_servers_take_the_devices_that_the_learner_leaves() -> None:
    vllm = ("--sampling.sampler", "vllm")
    assert place(2) == [["cpu"], ["cpu"]]
    assert place(1, *vllm, cards=3) == [["cuda:1", "cuda:2"]]
    assert place(2, *vllm, cards=4) == [["cuda:1"], ["cuda:2"]]
    assert place(1, *vllm, cards=4, ranks=2) == [["cuda:2", "cuda:3"]]
    assert place(1, *vllm, "--sampling.devices", "cuda:0,cuda:5", cards=6) == [["cuda:0", "cuda:5"]]
    assert place(1, *vllm, "--sampling.colocate", "true", cards=1) == [["cuda:0"]]
    assert place(2, "--sampling.servers", "2", cards=1) == [["cuda:0"], ["cuda:0"]]
    with pytest.raises(UsageError, match=r"sampling\.colocate=true"):
        place(1, *vllm, cards=1)
    with pytest.raises(UsageError, match="3 devices for 2 servers"):
        place(2, *vllm, "--sampling.devices", "cuda:1,cuda:2,cuda:3", cards=4)


def fake_server(**details: Any) -> Any:
    window = details.pop("window", 512)
    capabilities = Capabilities("qed", "0.1", "other/model", window, "float32", True, details=details)
    return SimpleNamespace(url="http://a:1", capabilities=capabilities, reader=Reader(None, (1, 2)), version=4)


def test_a_server_of_another_model_is_refused() -> None:
    policy: Any = SimpleNamespace(model=make_model(0, torch.float32))
    settings, _ = resolve("--sampling.max_tokens", "32")
    require_fit(fake_server(vocabulary=23, ends=[2, 1]), policy, settings)
    require_fit(fake_server(), policy, settings)
    with pytest.raises(UsageError, match=r"http://a:1 serves other/model.*151936 tokens in its vocabulary"):
        require_fit(fake_server(vocabulary=151936), policy, settings)
    with pytest.raises(UsageError, match="as end tokens"):
        require_fit(fake_server(ends=[7]), policy, settings)
    with pytest.raises(UsageError, match="sequences of 33 tokens"):
        require_fit(fake_server(window=33), policy, settings)
    assert "weights of step 4" in describe_server(fake_server())


def test_the_advice_for_servers_names_them() -> None:
    check = SamplerCheck(1.0, 0.5, 10, Tolerance(1e-3, 1e-4), "float32", 5, 3)
    with pytest.raises(UsageError, match="Its servers compute another model, or in another precision"):
        require_agreement(check, Remote(), Options())  # type: ignore[arg-type]
