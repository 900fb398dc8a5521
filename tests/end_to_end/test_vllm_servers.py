"""vLLM: found, started with the right flags, checked when it is up, and run by `qed serve` in the foreground."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from fake_vllm import ROUTES, make_python
from hypothesis import given
from hypothesis import strategies as st
from test_server_processes import is_running, wait_for

from qed.cli.commands import serve as serve_command
from qed.errors import UsageError
from qed.models.load import build_model
from qed.net.client import HttpClient
from qed.serving.install import find_vllm
from qed.serving.processes import ServerError, ServerProcess, run_servers
from qed.serving.vllm import (
    LORA_RANKS,
    VllmOptions,
    build_command,
    build_environment,
    build_vllm_spec,
    choose_cache_gib,
    choose_lora_rank,
    name_devices,
)

OPTIONS = VllmOptions("some/model", "policy", "float32")


def pair(command: list[str]) -> dict[str, str]:
    """The flags of a command with what follows them."""
    return dict(pairwise(command))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"version": "0.20.1"}, "vLLM 0.20.1 is not one of the versions"),
        ({"routes": ROUTES[:2]}, "has no route /pause"),
        ({"routes": ROUTES[:6]}, "has no route /v1/load_lora_adapter"),
        ({"name": "other"}, "serves other, not policy"),
        ({"logp": -1.5}, "--logprobs-mode processed_logprobs"),
        ({"ids": None}, "returns no token ids"),
        ({"dies": True}, "the model does not fit into memory"),
    ],
)
def test_a_server_that_cannot_train_is_refused_in_one_sentence(
    tmp_path: Path, changes: dict[str, object], named: str
) -> None:
    vllm = find_vllm(str(make_python(tmp_path / "env", **changes)), allow_untested=True)
    server = ServerProcess(build_vllm_spec(vllm, replace(OPTIONS, lora_rank=8), tmp_path / "logs"))
    with pytest.raises((ServerError, UsageError), match=named):
        server.start()
    assert not server.alive


def test_each_start_takes_the_newest_folder(tmp_path: Path) -> None:
    vllm = find_vllm(str(make_python(tmp_path / "env")))
    folders = iter([tmp_path / "step_1", tmp_path / "step_2"])
    spec = build_vllm_spec(vllm, OPTIONS, tmp_path / "logs", find_model=lambda: next(folders))
    with run_servers([spec]) as [server]:
        assert f"--model {tmp_path / 'step_1'} " in server.log.read_text()
        before = server.url
        os.kill(server.group, signal.SIGKILL)
        server.restart()
        assert f"--model {tmp_path / 'step_2'} " in server.log.read_text()
        assert server.url != before, "who asks the old address does not meet other weights"


def test_the_command_has_what_training_needs(tmp_path: Path) -> None:
    cpu = find_vllm(str(make_python(tmp_path / "cpu")))
    command = build_command(cpu, OPTIONS)
    flags = pair(command)
    assert flags["--host"] == "127.0.0.1"
    assert flags["--logprobs-mode"] == "processed_logprobs"
    assert flags["--generation-config"] == "vllm"
    assert flags["--dtype"] == "float32"
    assert {"--enforce-eager", "--no-enable-chunked-prefill"} < set(command)
    assert "--enable-lora" not in command
    assert "--enable-sleep-mode" not in build_command(cpu, replace(OPTIONS, sleeps=True)), "a CPU has no sleep"
    gpu = replace(cpu, package="vllm")
    command = build_command(
        gpu, replace(OPTIONS, devices=("cuda:1", "cuda:2"), sleeps=True, lora_rank=20, adapters=3, memory_share=0.4)
    )
    flags = pair(command)
    assert {"--enable-sleep-mode", "--enable-lora"} < set(command)
    assert not {"--enforce-eager", "--no-enable-chunked-prefill"} & set(command)
    assert flags["--max-lora-rank"] == "32"
    assert flags["--max-loras"] == "3"
    assert flags["--tensor-parallel-size"] == "2"
    assert flags["--gpu-memory-utilization"] == "0.4"
    with pytest.raises(UsageError, match="float64"):
        build_command(gpu, replace(OPTIONS, dtype="float64"))


def test_the_environment_is_vllms_and_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONHOME", "VIRTUAL_ENV", "RANK", "MASTER_PORT", "QED_SERVE_TOKEN"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    cpu = find_vllm(str(make_python(tmp_path / "cpu")))
    variables = build_environment(cpu, OPTIONS)
    assert not {"PYTHONHOME", "VIRTUAL_ENV", "RANK", "MASTER_PORT", "QED_SERVE_TOKEN"} & set(variables)
    assert variables["VLLM_NO_USAGE_STATS"] == variables["DO_NOT_TRACK"] == variables["VLLM_SERVER_DEV_MODE"] == "1"
    assert [path.name for path in Path(variables["PYTHONPATH"]).glob("*.py")] == ["qed_vllm_worker.py"]
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" not in variables
    assert "HF_HUB_OFFLINE" not in variables or "HF_HUB_OFFLINE" in os.environ
    gpu = replace(cpu, package="vllm")
    variables = build_environment(gpu, replace(OPTIONS, devices=("cuda:1", "cuda:2"), lora_rank=8, model=str(tmp_path)))
    assert variables["CUDA_VISIBLE_DEVICES"] == "5,6"
    assert variables["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == variables["HF_HUB_OFFLINE"] == "1"


def test_devices_are_named_as_another_process_sees_them() -> None:
    assert name_devices(["cuda:0", "cuda:2"], "") == "0,2"
    assert name_devices(["cuda:1"], "GPU-a, GPU-b") == "GPU-b"
    assert name_devices(["cuda"], "7") == "7"
    for devices, visible in ((["cuda:1"], "3"), (["cpu"], ""), (["cuda:x"], "")):
        with pytest.raises(UsageError):
            name_devices(devices, visible)


@given(st.integers(1, LORA_RANKS[-1]))
def test_the_largest_rank_is_the_next_that_vllm_knows(rank: int) -> None:
    chosen = choose_lora_rank(rank)
    assert chosen >= rank
    assert not any(rank <= allowed < chosen for allowed in LORA_RANKS)


def test_a_cpu_keeps_room_for_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qed.host.read_memory", lambda: (16 << 30, 8 << 30))
    config = {"num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "hidden_size": 896}
    (tmp_path / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 32768}))
    options = VllmOptions(str(tmp_path), "policy", "bfloat16", window=4096, rows=64, memory_share=0.99)
    # 24 layers x 2 heads x 64 numbers, for keys and values, of 2 bytes: 12 KiB a token, 3 GiB for 64 x 4096.
    assert choose_cache_gib(options) == 3
    assert choose_cache_gib(replace(options, rows=1, window=8)) == 1
    assert choose_cache_gib(replace(options, memory_share=0.25)) == 2


def test_serve_runs_vllm_in_the_foreground(tmp_path: Path) -> None:
    """It comes back at its address after a kill, and everything ends with a signal."""
    model, tokenizer = build_model("new:tiny", ["1 + 1 = 2"], seed=0)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    command = [sys.executable, "-m", "qed", "serve", str(tmp_path / "model"), "--engine", "vllm", "--json"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "QED_VLLM_PYTHON": str(make_python(tmp_path / "env"))}
    environment.pop("QED_CACHE", None)
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as serve:
        try:
            assert serve.stdout is not None
            ready = json.loads(next(line for line in serve.stdout if line.startswith("{")))
            assert ready["model"] == str(tmp_path / "model")
            client = HttpClient(ready["url"])
            assert client.ask("GET", "/version", seconds=20) == {"version": "0.32.0"}
            (supervisor,) = find_children(serve.pid)
            (server,) = find_children(supervisor)
            os.kill(server, signal.SIGKILL)
            wait_for(lambda: is_back(client))
            (supervisor,) = find_children(serve.pid)
            (server,) = find_children(supervisor)
            serve.send_signal(signal.SIGTERM)
            assert serve.wait(60) == 143
            wait_for(lambda: not is_running(server) and not is_running(supervisor))
        finally:
            serve.kill()


def find_children(process: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{process}/task/{process}/children").read_text().split()] or [
        int(text)
        for task in Path(f"/proc/{process}/task").iterdir()
        for text in (task / "children").read_text().split()
    ]


def is_back(client: HttpClient) -> bool:
    try:
        return client.request("GET", "/health", seconds=5).status == 200
    except Exception:  # noqa: BLE001 -- it is not back yet
        return False


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--host", "0.0.0.0"], "training routes require no key"),
        (["--token", "secret"], "training routes require no key"),
        (["--device", "cuda:0"], "has no --device. Name vLLM's devices with --devices"),
        (["--attention", "sdpa"], "has no --attention"),
    ],
)
def test_what_vllm_cannot_do_is_refused(options: list[str], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        serve_command.run(["some/model", "--engine", "vllm", *options])
