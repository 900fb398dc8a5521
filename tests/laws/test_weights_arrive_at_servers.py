"""An update of servers ends with the learner's weights in all of them, or with an error that says which has others."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import VOCABULARY, make_model
from safetensors import SafetensorError
from transformers import Qwen2ForCausalLM
from waiting import wait_until

from qed.config.settings import ModelSettings
from qed.errors import QedError
from qed.models import lora
from qed.models.save import ModelFiles
from qed.models.weights_folder import MARKER, read_marker
from qed.net.client import HttpClient
from qed.rollout import weights_folder
from qed.rollout.probe import GREEDY, Learner, Stale, build_probe
from qed.rollout.sampler_check import compare_logps
from qed.rollout.weights_folder import WeightsFolder, choose_place, write_full
from qed.rollout.weights_sync import Memory, WeightsSync, name_adapter
from qed.sampling.hf import HFSampler
from qed.sampling.server.balance import Balancer
from qed.sampling.server.dialect import Capabilities, Job, NotDrained, Reader, Server, ServerLost
from qed.sampling.server.sampler import ServerSampler
from qed.training.scoring import score_with
from qed.types import Completion, Problem, Rollout

WINDOW = 512
PROMPT = tuple(range(2, VOCABULARY))
LOADING = threading.Lock()  # transformers loads one model at a time


class NoTokenizer:
    def save_pretrained(self, folder: Path) -> None:
        """Nothing: ids go in and out."""


class FakeServer(Server):
    """A server in this process, which loads folders; its faults are those that engines have had."""

    dialect = "fake"

    def __init__(self, number: int = 0) -> None:
        capabilities = Capabilities("fake", "1", "model", WINDOW)
        super().__init__(HttpClient(f"http://127.0.0.1:{number + 1}"), capabilities, Reader(None, (1,)), 5.0)
        self.model: Any = make_model(99, torch.float32, max_position_embeddings=WINDOW)
        self.calls, self.dead = list[str](), False
        self.cached: dict[tuple[int, ...], Any] = {}  # the model that first read a prompt
        self.ignores_weights = self.keeps_cache = self.cannot_wait = False
        self.refuses = ""
        self.says: int | None = None
        self.rounding = 0.0  # of its scores, in nats

    def _call(self, name: str) -> None:
        if self.dead:
            raise ServerLost("connection refused")
        self.calls.append(name)

    def alive(self, seconds: float) -> None:
        if self.dead:
            raise ServerLost("connection refused")

    def _pause(self, mode: str, seconds: float) -> None:
        self._call(f"pause {mode}")
        if self.cannot_wait and mode == "wait":
            raise NotDrained("answers still run")

    def _resume(self) -> None:
        self._call("resume")

    def load_weights(self, folder: Path, version: int) -> None:
        self._call("load")
        if self.refuses:
            raise QedError(self.refuses)
        assert read_marker(folder)[0] == version
        self.version = version
        if not self.ignores_weights:
            with LOADING:
                self.model = Qwen2ForCausalLM.from_pretrained(folder).eval()

    def load_adapter(self, name: str, folder: Path) -> None:
        raise AssertionError("these are complete weights")

    def clear_caches(self) -> None:
        self._call("clear")
        if not self.keeps_cache:
            self.cached.clear()

    def read_version(self) -> int | None:
        self._call("version")
        return self.version if self.says is None else self.says

    def score(self, prompts: Sequence[Any], outputs: Sequence[Any], temperature: float = 1.0) -> list[Any]:
        self._call("score")
        rows = [
            Rollout(Problem("", "", ""), tuple(prompt), tuple(output), (), "", "length")
            for prompt, output in zip(prompts, outputs, strict=True)
        ]
        scored = score_with(self.model, temperature)(rows, torch.float32)
        return [[logp - self.rounding for logp in logps] for logps in scored]

    def complete(self, job: Job, on_progress: Callable[[], None], scope: Any = None) -> list[list[Completion]]:
        self._call("sample")
        answers = []
        for prompt, own, sampling in job.list_prompts():
            model = self.cached.setdefault(tuple(prompt), self.model)
            answers += HFSampler(model, None, [1], 8, torch.float32).generate([prompt], [own], sampling)
        return answers


def change(model: Any, size: float) -> None:
    with torch.no_grad():
        for number, weight in enumerate(model.parameters()):
            torch.manual_seed(number)
            weight.add_(torch.randn_like(weight), alpha=size)


@pytest.fixture
def model() -> Any:
    return make_model(0, torch.float32, max_position_embeddings=WINDOW)


@pytest.fixture
def folder(tmp_path: Path) -> Any:
    made = WeightsFolder(tmp_path)
    yield made
    made.close()


def build_sync(folder: WeightsFolder, servers: Sequence[Any], **more: Any) -> WeightsSync:
    sampler = ServerSampler(None, (1,), 8, torch.float32, seconds=1.0)
    sampler._balancer = Balancer(servers, 1, 1.0, sampler._hooks)
    return WeightsSync(
        sampler,
        folder,
        write=lambda model: write_full(model, NoTokenizer(), ""),
        kind="full",
        build_learner=lambda model: Learner(score_with(model, 1.0), torch.float32),
        probe=build_probe([PROMPT], WINDOW),
        **more,
    )


def test_every_server_gets_the_bits_of_the_weights(model: Any, folder: WeightsFolder) -> None:
    servers = [FakeServer(), FakeServer(1)]
    sync = build_sync(folder, servers)
    for version in (3, 4):
        change(model, 1e-3)
        sync(model, version)
        for server in servers:
            got = server.model.state_dict()
            assert all(torch.equal(got[name], weight) for name, weight in model.state_dict().items())
            assert server.version == sync.version == version
            assert not server.paused
            assert server.calls[:4] == ["pause wait", "load", "clear", "resume"]
            server.calls.clear()
    assert sync.figures["sampler/update_seconds"] > 0


def test_answers_that_take_too_long_are_aborted(model: Any, folder: WeightsFolder) -> None:
    server = FakeServer()
    server.cannot_wait = True
    build_sync(folder, [server])(model, 1)
    assert server.calls[:3] == ["pause wait", "pause abort", "load"]


def test_the_probe_has_several_lengths_and_fits_any_window() -> None:
    for window in (8, 40, 512):
        rows = build_probe([PROMPT], window)
        lengths = [len(row.prompt) + len(row.output) for row in rows]
        assert max(lengths) + GREEDY.max_tokens <= window
        assert all(row.output for row in rows)
        assert lengths == sorted(set(lengths))
    assert len(lengths) == 3


@pytest.mark.parametrize("size", [1e-1, 1e-6])
def test_weights_that_a_server_ignores_are_found(model: Any, folder: WeightsFolder, size: float) -> None:
    """Also where the update is so small that rounding would explain the difference."""
    healthy, server = FakeServer(), FakeServer(1)
    sync = build_sync(folder, [healthy, server])
    sync(model, 1)
    server.ignores_weights = True
    change(model, size)
    with pytest.raises(Stale, match=r"127\.0\.0\.1:2 has not taken the weights of step 2.*nats"):
        sync(model, 2)
    assert server.calls.count("resume") == 2


def test_another_model_is_found_at_the_first_update(model: Any, folder: WeightsFolder) -> None:
    server = FakeServer()
    server.ignores_weights = True
    with pytest.raises(Stale, match=r"127\.0\.0\.1:1 has not taken the weights of step 7.*float32 explains"):
        build_sync(folder, [server])(model, 7)


def test_a_prefix_cache_of_older_weights_is_found(model: Any, folder: WeightsFolder) -> None:
    server = FakeServer()
    server.keeps_cache = True
    sync = build_sync(folder, [server])
    sync(model, 1)
    change(model, 1e-2)
    with pytest.raises(Stale, match=r"127\.0\.0\.1:1 answers from a stale prefix cache after the update to step 2"):
        sync(model, 2)


def test_an_update_that_changes_nothing_is_no_fault(model: Any, folder: WeightsFolder) -> None:
    """A step may be skipped, or have no gradient."""
    server = FakeServer()
    sync = build_sync(folder, [server])
    sync(model, 1)
    sync(model, 2)
    assert server.version == 2


def test_a_server_that_says_another_version_is_refused(model: Any, folder: WeightsFolder) -> None:
    server = FakeServer()
    server.says = 41
    with pytest.raises(Stale, match=r"version 41"):
        build_sync(folder, [server])(model, 42)


def test_a_server_that_refuses_weights_ends_the_run_and_goes_on(model: Any, folder: WeightsFolder) -> None:
    server = FakeServer()
    sync = build_sync(folder, [server], restart=lambda server: pytest.fail("it is alive"))
    sync(model, 1)
    server.refuses = "size mismatch for lm_head.weight"
    with pytest.raises(QedError, match=r"127\.0\.0\.1:1 has not taken the weights of step 2: size mismatch"):
        sync(model, 2)
    assert server.calls[-1] == "resume"
    assert server.version == 1


def test_a_dead_server_is_started_again_and_gets_the_weights(model: Any, folder: WeightsFolder) -> None:
    servers = [FakeServer(), FakeServer(1)]
    started: list[str] = []

    def restart(server: Any) -> Any:
        started.append(server.url)
        server.__init__(1)
        return server

    sync = build_sync(folder, servers, restart=restart)
    sync(model, 1)
    servers[1].dead = True
    change(model, 1e-3)
    sync(model, 2)
    assert started == [servers[1].url]
    assert torch.equal(servers[1].model.lm_head.weight, model.lm_head.weight)
    # While answers are sampled, with a learner that has other weights by now.
    servers[1].dead = True
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    change(model, 1e-1)
    sync.revive(servers[1])
    assert servers[1].version == 2
    assert all(torch.equal(servers[1].model.state_dict()[name], weight) for name, weight in weights.items())
    assert len(started) == 2
    sync.revive(servers[1])  # somebody else has seen it dead too
    assert len(started) == 2
    sync(model, 3)


def test_a_learner_that_has_moved_on_excuses_no_more_than_rounding(model: Any) -> None:
    """Its rounding cannot be measured any more, as where a server is started again between two updates."""
    rows = build_probe([PROMPT], WINDOW)
    memory = Memory(score_with(model, 1.0))
    known = memory(rows, torch.bfloat16)
    memory.close()
    for shift in (0.0, 1.0):
        read = [replace(row, logps=[logp - shift for logp in logps]) for row, logps in zip(rows, known, strict=True)]
        assert compare_logps(read, memory, torch.bfloat16).passed == (shift == 0)


def test_a_server_that_is_started_again_may_round_a_little_more(model: Any, folder: WeightsFolder) -> None:
    """Its kernels are chosen afresh, so it may exceed the floor that it has just met, as it may after an update."""
    change(model, 0.5)  # for logits that bfloat16 rounds
    rows, score = build_probe([PROMPT], WINDOW), score_with(model, 1.0)
    low, high = ([logp for logps in score(rows, kind) for logp in logps] for kind in (torch.bfloat16, torch.float32))
    noise = sum(abs(one - two) for one, two in zip(low, high, strict=True)) / len(low)
    server = FakeServer()

    def restart(server: Any) -> Any:
        server.__init__()
        server.rounding = 0.02 + noise
        return server

    sync = build_sync(folder, [server], restart=restart)
    sync.build_learner = lambda model: Learner(score_with(model, 1.0), torch.float32, torch.bfloat16)
    server.rounding = 0.015
    sync(model, 1)
    change(model, 0.5)
    server.dead = True
    sync.revive(server)
    assert server.version == 1


def test_weights_that_are_prepared_are_loaded_later_as_they_were(model: Any, folder: WeightsFolder) -> None:
    """Also where more versions wait than are kept, and the learner has moved on."""
    server = FakeServer()
    sync = build_sync(folder, [server])
    loads, weights = [], []
    for version in range(1, 6):
        change(model, 1e-2)
        weights.append({name: weight.clone() for name, weight in model.state_dict().items()})
        loads.append(sync.prepare(model, version))
    assert len(folder.list_versions()) == 5
    for version, (load, expected) in enumerate(zip(loads, weights, strict=True), 1):
        load()
        assert server.version == sync.version == version
        assert all(torch.equal(server.model.state_dict()[name], weight) for name, weight in expected.items())
    sync(model, 6)
    assert len(folder.list_versions()) == 2


def test_a_dead_server_that_is_not_ours_is_named(model: Any, folder: WeightsFolder) -> None:
    server = FakeServer()
    server.dead = True
    with pytest.raises(QedError, match=r"127\.0\.0\.1:1 is lost \(connection refused\)"):
        build_sync(folder, [server])(model, 1)


@settings(max_examples=15)  # each starts a process
@given(st.integers(1, 4), st.lists(st.integers(0, 30), min_size=1, max_size=6))
def test_the_newest_versions_are_kept(tmp_path_factory: pytest.TempPathFactory, keep: int, versions: list[int]) -> None:
    folder = WeightsFolder(tmp_path_factory.mktemp("weights"), keep)
    try:
        for version in versions:

            def write(target: Path, rank: int) -> None:
                (target / "model.safetensors").write_bytes(b"x" * 10)
                assert not (target / MARKER).exists()

            path = folder.write(f"step_{version:06d}", version, "full", write)
            assert read_marker(path) == (version, "full")
            assert path in folder.list_versions()
            assert len(folder.list_versions()) <= keep
    finally:
        folder.close()
    assert not folder.root.exists()


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        SafetensorError("I/O error: No space left on device (os error 28)"),
        Exception("No space left on device (os error 28)"),  # of tokenizers
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_disk_that_is_full_leaves_no_half_of_a_version(folder: WeightsFolder, error: Exception) -> None:
    def write(target: Path, rank: int) -> None:
        (target / "model.safetensors").write_bytes(b"x")
        raise error

    with pytest.raises(QedError, match=r"No space left on device.*sampling\.weights_folder"):
        folder.write("step_000001", 1, "full", write)
    assert folder.list_versions() == []
    assert [path.name for path in folder.root.iterdir()] == [weights_folder.OWNER]


def test_weights_go_to_memory_only_where_the_servers_see_it_and_they_fit(tmp_path: Path) -> None:
    assert choose_place("/mnt/weights", tmp_path, 1, local=True) == Path("/mnt/weights")
    assert choose_place("", tmp_path, 1, local=False) == tmp_path / "weights"
    assert choose_place("", tmp_path, 1 << 60, local=True) == tmp_path / "weights"
    if weights_folder.MEMORY.is_dir():
        assert choose_place("", tmp_path, 1, local=True) == weights_folder.MEMORY


RUN = """
import sys, time
from pathlib import Path
from qed.rollout.weights_folder import WeightsFolder
folder = WeightsFolder(Path(sys.argv[1]))
print(folder.root, flush=True)
time.sleep(600)
"""


def start_run(place: Path) -> tuple[subprocess.Popen[str], Path]:
    run = subprocess.Popen([sys.executable, "-c", RUN, str(place)], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    return run, Path(run.stdout.readline().strip())


def test_weights_of_a_killed_run_are_removed(tmp_path: Path) -> None:
    run, root = start_run(tmp_path)
    assert root.is_dir()
    other = WeightsFolder(tmp_path)  # another run leaves it alone while it lives
    assert root.is_dir()
    run.send_signal(signal.SIGKILL)
    run.wait()
    wait_until(lambda: not root.exists())
    left = tmp_path / f"{weights_folder.PREFIX}0-left"  # of a machine that lost its power
    shutil.copytree(other.root, left)
    weights_folder.remove_leftovers(tmp_path)
    assert not left.exists()
    assert other.root.is_dir()
    other.close()
    assert list(tmp_path.iterdir()) == []


def test_a_base_has_the_weights_without_adapters(tmp_path: Path) -> None:
    base = make_model(0, torch.float32, tie_word_embeddings=False)
    plain = {name: weight.clone() for name, weight in base.state_dict().items()}
    adapted: Any = lora.add_adapters(base, ModelSettings(name="x", lora_rank=2), 0)
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if ".lora_B" in name:
                weight.fill_(0.1)
    for merge in (True, False):
        ModelFiles(adapted, merge=merge).write(tmp_path / str(merge), NoTokenizer())
    merged, alone = (Qwen2ForCausalLM.from_pretrained(tmp_path / str(merge)).state_dict() for merge in (True, False))
    assert all(torch.equal(alone[name], weight) for name, weight in plain.items())
    assert any(not torch.equal(merged[name], weight) for name, weight in plain.items())
    assert json.loads((tmp_path / "False" / "config.json").read_text())["architectures"] == ["Qwen2ForCausalLM"]


def test_each_version_of_adapters_has_a_name_of_its_own() -> None:
    assert name_adapter(3) != name_adapter(4)
    assert os.path.basename(name_adapter(3)) == name_adapter(3)
