"""The inference servers of a run: started with it or already running, and updated with the learner's weights.

`sampling.sampler vllm`, and `native` with `sampling.servers` or `rollout.max_staleness`, start servers on this machine;
`sampling.sampler server` uses those at `sampling.url`, which are neither started nor stopped here.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import torch

from qed.config.phases import Settings
from qed.console.live import Console
from qed.errors import UsageError
from qed.guards.signals import check_signals
from qed.loops.server_places import (
    Place,
    build_spec,
    choose_devices,
    describe_server,
    require_fit,
    share_threads,
)
from qed.models import load
from qed.models.precision import read_precision
from qed.models.save import ModelFiles
from qed.rollout.policy import Policy
from qed.rollout.probe import Learner, build_probe
from qed.rollout.weights_folder import (
    Format,
    WeightsFolder,
    Writes,
    choose_place,
    name_version,
    write_adapter,
    write_base,
    write_full,
)
from qed.rollout.weights_sync import WeightsSync
from qed.runs.run import Run
from qed.sampling.server.dialect import Server
from qed.sampling.server.sampler import ServerSampler
from qed.serving.placed import PlacedServers, find_placed_servers
from qed.serving.processes import ServerProcess, ServerSpec, start_servers
from qed.training.parallel import Parallel
from qed.training.scoring import score_with
from qed.types import Problem

PROBED = 16  # problems whose prompts form the probe
LOOPBACK = {"127.0.0.1", "localhost", "::1"}
BASE = "base"  # name of the folder that servers start from if adapters are trained


def starts_servers(settings: Settings) -> int:
    """Return the number of servers that a run starts."""
    sampling = settings.sampling
    if sampling.sampler == "vllm":
        return max(1, sampling.servers)
    return max(sampling.servers, int(settings.rollout.max_staleness > 0)) if sampling.sampler == "native" else 0


class RunServers:
    """The servers of a run; as a context manager, stops those that it has started, and removes their weights.

    Args:
        run: the run, for logs and events.
        console: for messages.
        parallel: the ranks; the first one starts the servers and sends them weights.
        takes_placed: whether to use the servers that a cluster has placed.
    """

    def __init__(self, run: Run, console: Console, parallel: Parallel, takes_placed: bool = True) -> None:
        self.run, self.console, self.parallel, self.takes_placed = run, console, parallel, takes_placed
        self.specs: list[ServerSpec] = []
        self.processes: list[ServerProcess] = []
        self.folder: WeightsFolder | None = None
        self.placed: PlacedServers | None = None
        self.sync: WeightsSync | None = None
        self._finished: dict[int, int] = {}  # requests that each server had answered at its last restart
        self._stack = ExitStack()

    def __enter__(self) -> RunServers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def connect(
        self, policy: Policy, settings: Settings, problems: Sequence[Problem], device: torch.device, version: int
    ) -> None:
        """Start the servers in the settings, if any, or connect to them, and let the policy sample on them.

        Args:
            policy: policy of the run.
            settings: settings of the phase that samples.
            problems: problems whose prompts form the probe.
            device: device of the learner.
            version: step of the policy's weights.

        Raises:
            UsageError: the servers do not fit the model or the machine.
            QedError: a server does not start.
            Interrupted: a stop signal has arrived.
        """
        check_signals("load")  # the model has been loaded
        self.settings, self.device = settings, device
        self.placed = find_placed_servers() if self.parallel.is_first and self.takes_placed else None
        count, together = self.parallel.run_on_first(self._count_servers)
        if count and not isinstance(policy.sampler, ServerSampler):
            policy.sampler = self._build_sampler(policy)
        sampler = policy.sampler
        if not isinstance(sampler, ServerSampler):
            return
        self._stack.callback(sampler.close)
        self._open_folder(policy.model)
        if count:
            self._require_one_machine(together)
            self._write_start(policy, version)
            window = load.read_window(policy.model)
            sampler.set_servers(self.parallel.run_on_first(lambda: self._start(count, window)))
        for server in sampler.servers:
            require_fit(server, policy, self.settings)
        self._attach(sampler, policy, problems, restarts=bool(count))
        lines = [describe_server(server) for server in sampler.servers]
        for line in lines:
            self.console.say(line)
        self.run.event("servers", started=count, servers=lines)

    def _count_servers(self) -> tuple[int, bool]:
        """Return how many servers the run starts, and whether they are on this machine."""
        if self.placed is not None:
            return self.placed.count, False
        return starts_servers(self.settings), True

    def _build_sampler(self, policy: Policy) -> ServerSampler:
        """Build a sampler on native servers, to replace the in-process one."""
        sampling, template = self.settings.sampling, policy.template
        ends = load.find_end_ids(policy.model, policy.tokenizer, template.leaf.CHAT)
        precision = read_precision(self.settings.model)
        return ServerSampler(policy.tokenizer, ends, sampling.rows_per_batch, precision, sampling.request_seconds)

    def _open_folder(self, model: Any) -> None:
        """Create the folder for the weights, on the first rank."""
        if not self.parallel.is_first:
            return
        hosts = {urlsplit(url).hostname for url in self.settings.sampling.url}
        local = hosts <= LOOPBACK if self.placed is None else not self.placed.shared
        keep = 2 + self.settings.rollout.max_staleness
        needed = (keep + 1) * sum(weight.nbytes for weight in ModelFiles(model).weights)
        place = choose_place(self.settings.sampling.weights_folder, self.run.folder.resolve(), needed, local)
        self.folder = WeightsFolder(place, keep)
        self._stack.callback(self.folder.close)

    def _require_one_machine(self, together: bool) -> None:
        if together and self.parallel.local_world != self.parallel.world:
            raise UsageError(
                "The ranks of this run are on several machines, but its own servers can be reached from only one. "
                "Start them with qed serve, and name them: --sampling.sampler server --sampling.url URL[,URL...]."
            )

    @property
    def _kind(self) -> Format:
        return "adapter" if self.settings.model.lora_rank else "full"

    def _write_start(self, policy: Policy, version: int) -> None:
        """Write the model that servers start from: the current weights, or the base weights if adapters are trained."""
        adapted, folder = self._kind == "adapter", self.folder
        files = write_base(policy.model, policy.tokenizer, self._dtype) if adapted else self._write(policy)
        name = BASE if adapted else name_version(version)
        if folder is None:
            files(Path(), self.parallel.rank)
        self.parallel.run_on_first(lambda: folder and folder.write(name, version, "full", files))

    @property
    def _dtype(self) -> str:
        """The dtype in which weights are sent; empty keeps the learner's."""
        exact = self.settings.sampling.sampler != "vllm" or self.settings.model.precision != "bfloat16"
        return "" if exact else "bfloat16"

    def _write(self, policy: Policy) -> Writes:
        return write_full(policy.model, policy.tokenizer, self._dtype)

    def _find_start(self) -> Path:
        """Return the folder that a server starts from."""
        assert self.folder is not None
        base = self.folder.root / BASE
        return base if base.is_dir() else self.folder.list_versions()[-1]

    def _start(self, count: int, window: int) -> list[str]:
        """Start the servers on the first rank, and return their addresses; `window` is the model's."""

        def build(number: int, devices: Sequence[str], threads: int) -> ServerSpec:
            place = Place(f"server {number}", devices, threads)
            return build_spec(self.settings, place, self._logs, window, self._find_start)

        if self.placed is not None:
            # A cluster gives each server its own devices, numbered from 0.
            gpus = self.settings.cluster.gpus_per_engine if self.device.type == "cuda" else 0
            devices = [f"cuda:{gpu}" for gpu in range(gpus)] or ["cpu"]
            self.specs = [build(number, devices, share_threads(1)) for number in range(count)]
            return self.placed.start(self.specs)
        places = choose_devices(self.settings, count, self.device, self.parallel.local_world)
        self.specs = [build(number, devices, share_threads(count)) for number, devices in enumerate(places)]
        self.processes = [ServerProcess(spec) for spec in self.specs]
        self._stack.callback(self._stop)
        self.console.say(f"Starting {count} server{'s' * (count > 1)} of {self._engine}; logs in {self._logs}.")
        start_servers(self.processes)
        return [process.url for process in self.processes]

    @property
    def _logs(self) -> Path:
        return self.run.folder / "logs" / "servers"

    @property
    def _engine(self) -> str:
        return "vLLM" if self.settings.sampling.sampler == "vllm" else "qed"

    def _stop(self) -> None:
        for process in self.processes:
            process.ask_to_stop()
        for process in self.processes:
            process.stop()

    def _attach(self, sampler: ServerSampler, policy: Policy, problems: Sequence[Problem], restarts: bool) -> None:
        """Give the sampler the callbacks that load weights into its servers and restart lost ones."""
        prompts = [tuple(policy.template.tokens(policy.template.prompt(each))) for each in problems[:PROBED]]
        window = min(load.read_window(policy.model), *(server.capabilities.window for server in sampler.servers))
        precision = read_precision(self.settings.model)
        rounding = sampler.rounding = self._find_rounding(sampler)
        self.sync = WeightsSync(
            sampler,
            self.folder,
            write=lambda model: write_adapter(model) if self._kind == "adapter" else self._write(policy),
            kind=self._kind,
            build_learner=lambda model: Learner(score_with(model, 1.0), precision, rounding),
            probe=build_probe(prompts, window),
            parallel=self.parallel,
            restart=self._restart if restarts else None,
        )
        sampler.sync = self.sync
        sampler.on_lost = self.sync.revive if restarts else None
        sampler.on_return = self.sync.catch_up

    def _find_rounding(self, sampler: ServerSampler) -> torch.dtype | None:
        """Return the servers' precision if it differs from the learner's."""
        found = {server.capabilities.precision for server in sampler.servers}
        if found == {self.settings.model.precision}:
            return None
        if self.settings.sampling.sampler == "vllm":  # started in the learner's precision, except for float64
            return torch.float32 if self.settings.model.precision == "float64" else None
        return torch.float32 if found == {"float32"} else torch.bfloat16

    def _restart(self, server: Server) -> Server:
        """Restart a server's process, and return the server that replaces it."""
        assert self.sync is not None
        sampler = self.sync.sampler
        number = sampler.servers.index(server)
        self.console.say(f"{server.url} is lost and will be restarted; logs in {self._logs}.")
        if self.placed is not None:
            url = self.placed.restart(number, self.specs[number])
        else:
            finished, before = sampler.count_finished(number), self._finished.get(number, 0)
            self._finished[number] = finished
            self.processes[number].restart(worked=finished > before)
            url = self.processes[number].url
        self.run.event("server_restarted", server=number, before=server.url, url=url)
        sampler.replace_server(number, url)
        return sampler.servers[number]
