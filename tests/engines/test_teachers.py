"""A server as a teacher: its log-probs are those of its model, and one that cannot teach is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from engine_models import TEXTS, Models
from families import forward_logps
from running import Engine
from stand_in import StandIn
from threaded import run_threads

from qed.algorithms.opd import Opd
from qed.errors import QedError, UsageError
from qed.loops.teacher import ServedTeacher, _read_probe, compare_tokenizers, require_own_weights, require_room
from qed.models.load import build_model
from qed.sampling.server import ServerSampler
from qed.training.parallel import ALONE
from qed.types import Problem, Rollout

ROWS = [((5, 6, 7), (8, 9)), ((11,), (12, 13, 14)), ((3, 4), (5,))]
ROLLOUTS = [Rollout(Problem("p", "?", "1"), prompt, output, (), "", "stop") for prompt, output in ROWS]


def connect(engine: Engine, seconds: float = 60.0) -> ServerSampler:
    servers = ServerSampler(engine.models.tokenizer, (), 4, torch.float32, seconds)
    servers.set_servers([engine.url + "/v1"], samples=False)
    engine.samplers.append(servers)
    return servers


def test_the_tokens_of_the_policy_are_scored(engine: Engine) -> None:
    scored = ServedTeacher(connect(engine), 1.0, ALONE)(ROLLOUTS)
    for (prompt, output), logps in zip(ROWS, scored, strict=True):
        expected = forward_logps(engine.models.network, list(prompt), list(output))
        assert logps == pytest.approx(list(map(float, expected)), abs=max(engine.tolerance, 1e-4))


def test_a_server_that_does_not_know_temperatures_refuses_them(engine: Engine) -> None:
    teacher = ServedTeacher(connect(engine), 0.5, ALONE)
    if engine.dialect == "native":
        assert len(teacher(ROLLOUTS)) == len(ROLLOUTS)
        return
    with pytest.raises(UsageError, match="only at temperature 1"):
        teacher(ROLLOUTS)


def test_tokenizers_are_compared(engine: Engine) -> None:
    (server,) = connect(engine).servers
    said = compare_tokenizers(server, engine.models.tokenizer, TEXTS)
    assert "same vocabulary" in said
    _, other = build_model("new:tiny", ["another text of other words, which makes another vocabulary " * 3], seed=0)
    with pytest.raises(UsageError, match="a different tokenizer"):
        compare_tokenizers(server, other, TEXTS)


def test_a_tokenizer_that_cannot_be_known_is_said(models: Models) -> None:
    server: Any = SimpleNamespace(capabilities=SimpleNamespace(details={"root": "a/hub-name"}), tokenize=lambda _: None)
    assert "not compared" in compare_tokenizers(server, models.tokenizer, TEXTS)


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
def test_a_teacher_that_is_gone_ends_the_run(models: Models, dialect: str) -> None:
    with StandIn(dialect, models).run() as server:
        teacher = ServedTeacher(connect(Engine(dialect, server.url, models, 1e-4), seconds=0.5), 1.0, ALONE)
        server.die()
        with pytest.raises(QedError, match="The teacher cannot score: All servers are lost"):
            teacher(ROLLOUTS)


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
@pytest.mark.parametrize("broken", [None, math.nan, -math.inf, "few"])
def test_wrong_log_probs_end_the_run(
    monkeypatch: pytest.MonkeyPatch, models: Models, dialect: str, broken: float | str | None
) -> None:
    """The reply holds no number, one that is not finite, or no log-probs."""
    with StandIn(dialect, models).run() as server:
        teacher = ServedTeacher(connect(Engine(dialect, server.url, models, 1e-4), seconds=5.0), 1.0, ALONE)
        monkeypatch.setattr(server, "score", lambda body: [broken] * (len(body.get("prompt", ())) - 1))
        with pytest.raises(QedError, match=r"The teacher cannot score: .* log-probs"):
            teacher(ROLLOUTS)


def test_a_reply_of_another_form_ends_the_run(monkeypatch: pytest.MonkeyPatch, models: Models) -> None:
    with StandIn("vllm", models).run() as server:
        teacher = ServedTeacher(connect(Engine("vllm", server.url, models, 1e-4), seconds=5.0), 1.0, ALONE)
        monkeypatch.setattr(teacher.servers.servers[0], "ask", lambda *_: {"choices": []})
        with pytest.raises(QedError, match=r"The teacher cannot score: .* log-probs"):
            teacher(ROLLOUTS)


def test_a_teacher_that_becomes_another_ends_the_run(monkeypatch: pytest.MonkeyPatch, models: Models) -> None:
    """Each request scores one text more, by which the teacher is known again."""
    with StandIn("vllm", models).run() as server:
        plain = ServedTeacher(connect(Engine("vllm", server.url, models, 1e-4)), 1.0, ALONE)
        teacher = ServedTeacher(plain.servers, 1.0, ALONE, probe=((5,), tuple(range(6, 20))))
        assert teacher(ROLLOUTS) == plain(ROLLOUTS)
        assert teacher(ROLLOUTS[:1]) == plain(ROLLOUTS[:1])
        score = server.score
        monkeypatch.setattr(server, "score", lambda body: [value and value - 0.05 for value in score(body)])
        teacher(ROLLOUTS)  # as far as rounding goes in half precision
        monkeypatch.setattr(server, "score", lambda body: [value and value - 0.2 for value in score(body)])
        with pytest.raises(
            UsageError, match=r"another model or other weights than before: .* differ by 0\.2 on average"
        ):
            teacher(ROLLOUTS)
        resumed = ServedTeacher(plain.servers, 1.0, ALONE, probe=teacher.probe)
        resumed.known = teacher.known
        with pytest.raises(UsageError, match="another model"):
            resumed.ask([])


def test_a_resumed_run_knows_its_teacher(tmp_path: Path) -> None:
    """By the newest event of the same server, model, text and temperature; not where the teacher may change."""
    about = {"url": "http://127.0.0.1:8000", "model": "m", "probe": [1, 2, 3], "temperature": 1.0}
    rows = [{"event": "teacher", **about, "weights": "w", "probe_logps": [-1.0, -2.0]}]
    rows += [{**rows[0], "probe_logps": [-1.5, -2.5]}, {**rows[0], "temperature": 0.5, "probe_logps": [-3.0, -3.0]}]
    file = tmp_path / "events.jsonl"

    def read(*allowed: str, **changes: Any) -> list[float]:
        setup: Any = SimpleNamespace(run=SimpleNamespace(folder=tmp_path), launch=SimpleNamespace(allow_change=allowed))
        return _read_probe(setup, {**about, **changes})

    assert read() == []
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read() == [-1.5, -2.5]
    assert read(temperature=0.5) == [-3.0, -3.0]
    assert read(probe=[1, 2]) == read(model="other") == read("rl.algorithm.teacher") == []


def test_a_teacher_must_have_its_own_weights(models: Models) -> None:
    known = SimpleNamespace(model="m", details={"root": "/models/m"})

    def build(url: str, version: int | None = None, batches: bool = True) -> Any:
        return SimpleNamespace(url=url, version=version, batches=batches, capabilities=known)

    def check(server: Any, rank: int = 0, url: str = "http://127.0.0.1:8000") -> None:
        sampler = ServerSampler(models.tokenizer, (), 4, torch.float32, 5.0)
        sampler._balancer.slots[:] = [SimpleNamespace(server=build(url))]  # type: ignore[list-item]
        settings: Any = SimpleNamespace(model=SimpleNamespace(lora_rank=rank))
        require_own_weights(cast("Any", SimpleNamespace(sampler=sampler)), settings, server)

    for version in (None, 0):
        check(build("http://127.0.0.1:8001", version))
    with pytest.raises(UsageError, match="weights of version 4, which a run has sent, in place of those of /models/m"):
        check(build("http://127.0.0.1:8001", 4))
    for server in (build("http://localhost:8000"), build("http://127.0.0.1:8000", batches=False)):
        with pytest.raises(UsageError, match="is set as both the sampler and the teacher"):
            check(server)
    check(build("http://127.0.0.1:8000", batches=False), rank=4)  # its adapters are beside the teacher's weights


def test_a_model_that_the_server_has_not_is_refused(models: Models) -> None:
    with StandIn("vllm", models).run() as server:
        servers = ServerSampler(models.tokenizer, (), 4, torch.float32, 5.0)
        with pytest.raises(UsageError, match="serves no model large; it has tiny"):
            servers.set_servers([server.url], "large", samples=False)
        servers.set_servers([server.url], "tiny", samples=False)


def test_several_ranks_ask_once(models: Models) -> None:
    with StandIn("vllm", models).run() as server:
        servers = connect(Engine("vllm", server.url, models, 1e-4))
        scored = run_threads(lambda parallel: ServedTeacher(servers, 1.0, parallel)(ROLLOUTS), 2)
        assert scored[0] == scored[1]
        assert sum("prompt_logprobs" in body for _, body in server.asked if body) == len(ROLLOUTS)


def test_settings_that_a_server_cannot_serve_are_refused() -> None:
    address = "http://127.0.0.1:8000/v1"
    assert not Opd(teacher=address).reference
    assert Opd(teacher=address, teacher_model="large").teacher_server == (address, "large")
    with pytest.raises(UsageError, match="whole distributions"):
        Opd(teacher=address, divergence="jsd")
    with pytest.raises(UsageError, match="not an address"):
        Opd(teacher="folder", teacher_model="large")


def test_a_teacher_with_a_short_window_is_refused(models: Models) -> None:
    settings: Any = SimpleNamespace(sampling=SimpleNamespace(max_tokens=20))
    template = SimpleNamespace(lengths=lambda problems: [7, 12])
    setup: Any = SimpleNamespace(model=models.network, template=template, problems=[1, 2])
    require_room(setup, settings, "model large", 32)
    with pytest.raises(UsageError, match=r"takes at most 31 tokens, .* 20 tokens need 32"):
        require_room(setup, settings, "model large", 31)
