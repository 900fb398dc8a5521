"""Run a training command on a Ray cluster: Ray Train places its learners, and restarts all of them if one is lost.

The command itself trains nothing. It shows what rank 0 prints, forwards signals, and returns the run's exit code.
"""
# ruff: noqa: PLC0415 -- ray is an extra, and is imported when it is used

from __future__ import annotations

import codecs
import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field
from signal import Signals
from typing import Any, TextIO

from qed.cluster.launch import receive_signals
from qed.cluster.placing import Engines, make_key, place_engines, reserve_for_engine, uses_gpus
from qed.cluster.ray_control import DONE, LOST_WORKER, RETRY, Board, Control, Job, RemoteRank, Report, describe_end
from qed.cluster.ray_session import Session, connect, load_ray, read_worker_environment
from qed.cluster.watch import LOST, Patience, Watch, say
from qed.config.arguments import drop_flags
from qed.config.phases import PipelineSettings, Settings
from qed.config.resolve import Resolved
from qed.errors import Interrupted, QedError, RankLost, UsageError
from qed.guards.signals import EXIT_CODES

TICK = 0.2  # seconds
PLACING = 15.0  # seconds without learners after which the command prints what it is waiting for
LEAVING = 30.0  # seconds for Ray Train to end after the ranks have ended
MAX_REASON = 600  # characters
RESTARTS = 3  # of Ray Train itself, if it cannot start its workers
# Environment variables with these prefixes are passed from the command to the ranks; all others are those of each node.
THREADS = ("OMP_", "MKL_", "KMP_")
CARRIED = (*THREADS, "QED_", "HF_", "TORCH", "PYTORCH_", "CUBLAS_", "NCCL_", "GLOO_", "TOKENIZERS_", "MALLOC_")
SECRETS = ("WANDB_", "TRACKIO_", "MLFLOW_", "OPENAI_")


def run_on_cluster(resolved: Resolved, arguments: Sequence[str]) -> int:
    """Run a training command on the cluster of `--cluster`, and return the run's exit code.

    Args:
        resolved: the settings and flags of the command.
        arguments: the complete command line.

    Returns:
        The exit code of the ranks, see `run_ranks`.

    Raises:
        UsageError: ray is not installed, no cluster answers, it is too small, or the run has no folder.
        RankLost: the ranks were lost more often than `cluster.max_failures`.
        QedError: Ray could not start the learners.
    """
    settings = resolved.settings
    if not settings.run.out:
        raise UsageError("--cluster needs the run's folder, on storage that all nodes share: add --out DIR.")
    keys = name_keys(settings)
    carried = {k: v for k, v in os.environ.items() if k.startswith((*CARRIED, *SECRETS)) or k in keys}
    job = Job(
        arguments=tuple(drop_flags(arguments, "cluster")),
        folder=settings.run.out,
        cwd=os.getcwd(),
        environment=carried | read_worker_environment() | make_key(settings),
        failures=settings.cluster.max_failures,
    )
    # Both are read when ray is imported. The second keeps a thread that still runs at the end from starting a cluster.
    os.environ |= {"RAY_TRAIN_V2_ENABLED": "1", "RAY_ENABLE_AUTO_CONNECT": "0"}
    stdout = sys.stdout  # reserved for rank 0, because Ray prints too
    with redirect_stdout(sys.stderr), connect(resolved.flags.cluster) as session, receive_signals() as signals:
        learners = place_learners(settings, session)
        engines = place_engines(settings, session)
        servers = f", servers: {engines.count}" if engines else ""
        say(f"Ray cluster at {session.address}: {session}; learners: {learners.count}{servers}.")
        return _Launch(job, learners, engines, signals, stdout).run()


def name_keys(settings: Settings | PipelineSettings) -> set[str]:
    """Return the environment variables in which rewards look for the keys of their servers."""
    phases = settings.phases() if isinstance(settings, PipelineSettings) else [settings]
    options = [option.partition("=") for phase in phases for option in phase.data.reward_options]
    return {value.strip() for name, _, value in options if name.strip().endswith(".key_variable")}


@dataclass(frozen=True)
class Learners:
    """The number of learners, and what Ray reserves for each."""

    count: int
    resources: dict[str, float]

    @property
    def strategy(self) -> str:
        """How Ray spreads them: with GPUs on as few nodes as possible; without, over all nodes."""
        return "PACK" if "GPU" in self.resources else "SPREAD"


def place_learners(settings: Settings | PipelineSettings, session: Session) -> Learners:
    """Return the learners for a cluster: `cluster.learners`, by default one per GPU, or one per node without GPUs.

    Raises:
        UsageError: the cluster is too small.
    """
    cluster, engines = settings.cluster, reserve_for_engine(settings, session)
    on_gpus = uses_gpus(settings, session)
    resources = {"CPU": 1.0, **({"GPU": 1.0} if on_gpus else {})}
    free = session.gpus - cluster.engines * engines.get("GPU", 0.0)
    count = cluster.learners or max(1, int(free) if on_gpus else session.nodes)
    for name, has in (("GPU", session.gpus), ("CPU", session.cpus)):
        taken = cluster.engines * engines.get(name, 0.0)
        if count * resources.get(name, 0.0) + taken > has:
            servers = f" and {cluster.engines} servers {taken:g}" if taken else ""
            raise UsageError(
                f"{count} learners need {count} {name}s{servers}, but the cluster has {has:g} ({session}). Add nodes "
                "with `ray start --address HOST:PORT`, or set cluster.learners"
                f"{', cluster.engines and cluster.gpus_per_engine' if taken else ''}."
            )
    return Learners(count, resources)


@dataclass
class _Launch:
    """One call of `run_on_cluster`: the learners, the signals that the command receives, and the output of rank 0."""

    job: Job
    learners: Learners
    engines: Engines | None
    signals: list[int]
    stdout: TextIO
    board: Board = field(default_factory=lambda: Board(Report(0, (), b"", b"")))
    error: BaseException | None = None  # of Ray Train
    control: Any = None
    hosts: Sequence[Any] = ()  # the actors of the servers
    _reading: threading.Lock = field(default_factory=threading.Lock)
    # The output arrives in pieces, which may end in the middle of a character.
    _decoders: tuple[codecs.IncrementalDecoder, ...] = field(
        default_factory=lambda: tuple(codecs.getincrementaldecoder("utf-8")("replace") for _ in range(2))
    )

    def run(self) -> int:
        """Return the exit code of the run."""
        with tempfile.TemporaryDirectory(prefix="qed-ray-") as folder:
            self.control = self._start_control()
            self.hosts = self._start_engines()
            trainer = threading.Thread(target=self._fit, args=(self._build_trainer(folder),), daemon=True)
            trainer.start()
            threading.Thread(target=self._relay, daemon=True).start()
            try:
                code = self._watch()
                trainer.join(LEAVING)
                return code
            finally:
                with suppress(Exception):  # an error here must not hide how the run ended
                    self._read_board()

    def _start_control(self) -> Any:
        ray = load_ray()
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        actor = ray.remote(num_cpus=0)(Control).options(scheduling_strategy=here)
        return actor.remote(self.job, self.learners.count)

    def _start_engines(self) -> list[Any]:
        """Start the actors of the servers; they end with this process."""
        if self.engines is None:
            return []
        from qed.cluster.ray_engines import start_hosts

        return start_hosts(self.engines, self.job)

    def _build_trainer(self, folder: str) -> Any:
        """Build the TorchTrainer; `folder` is for its own files, which qed does not need.

        Raises:
            UsageError: ray is too old.
        """
        try:
            from ray.train import FailureConfig, RunConfig, ScalingConfig
            from ray.train.torch import TorchTrainer

            from qed.cluster.ray_ranks import MeetingConfig, run_rank

            failures = FailureConfig(max_failures=self.job.failures, controller_failure_limit=RESTARTS)
        except (ImportError, TypeError) as error:
            raise UsageError(
                f"--cluster needs Ray Train of ray 2.51 or newer ({error}). Install it: pip install 'ray[train]>=2.51'."
            ) from error
        return TorchTrainer(
            run_rank,
            train_loop_config={
                "control": self.control,
                "hosts": self.hosts,
                "shared": self.engines is not None and self.engines.shared,
            },
            torch_config=MeetingConfig(control=self.control),
            scaling_config=ScalingConfig(
                num_workers=self.learners.count,
                use_gpu="GPU" in self.learners.resources,
                resources_per_worker=self.learners.resources,
                placement_strategy=self.learners.strategy,
            ),
            run_config=RunConfig(name="qed", storage_path=folder, failure_config=failures),
        )

    def _fit(self, trainer: Any) -> None:
        """Let Ray Train start and restart the workers; runs in a thread, because the main thread receives signals."""
        try:
            trainer.fit()
        except BaseException as error:  # noqa: BLE001 -- raised by `_watch`
            self.error = error
        self.board.over = True

    def _relay(self) -> None:
        try:
            while not self.board.over:
                self._read_board()
                time.sleep(TICK)
        except Exception as error:  # noqa: BLE001 -- the cluster is gone
            self.error, self.board.over = error, True

    def _read_board(self) -> None:
        """Read the latest report, and print the output of rank 0."""
        with self._reading:
            report = load_ray().get(self.control.report.remote())
            for stream, decoder, content in zip(
                (self.stdout, sys.stderr), self._decoders, (report.out, report.err), strict=True
            ):
                stream.write(decoder.decode(content))
                stream.flush()
            self.board.report = report

    def _watch(self) -> int:
        """Watch one attempt after another, and return the exit code of the last one.

        Raises:
            Interrupted: a signal was received while no learner was running.
        """
        attempt, reason = 0, ""
        while self._wait_for_attempt(attempt):
            attempt = self.board.report.attempt
            if attempt > 1:
                say(f"Restart {attempt - 1} of {self.job.failures}: {reason or LOST_WORKER}.")
            ranks = [RemoteRank(number, attempt, self.board, self.control) for number in range(self.learners.count)]
            watch = Watch(ranks, self.signals, Patience())
            code = watch.wait()
            reason = describe_end(ranks)
            retries = code == LOST and not watch.stopped
            self.control.settle.remote(attempt, RETRY if retries else DONE, reason)
            if not retries:
                return code
        raise self._explain_end(attempt, reason)

    def _wait_for_attempt(self, before: int) -> bool:
        """Wait until Ray Train has created another group of workers; return False if it has ended instead."""
        waited = 0.0
        while self.board.report.attempt == before and not self.board.over:
            if stop := next((number for number in self.signals if number in EXIT_CODES), None):
                signal = Signals(stop)
                raise Interrupted(f"Stopped by {signal.name} while no learner was running.", EXIT_CODES[signal])
            if waited <= PLACING < waited + TICK:
                say(f"Waiting for the cluster to place {self.learners.count} learners.")
            time.sleep(TICK)
            waited += TICK
        return self.board.report.attempt != before

    def _explain_end(self, attempts: int, reason: str) -> QedError:
        """Return the error of a run that Ray Train does not restart."""
        described = " ".join(str(self.error).split())[:MAX_REASON]
        if not any(rank.place for rank in self.board.report.ranks):
            return QedError(
                f"Ray could not start the learners: {described}. qed must be installed in the same Python on every "
                "node; `ray status` shows what the cluster has."
            )
        return RankLost(
            f"The ranks were lost {attempts} times, most recently: {reason or LOST_WORKER}. cluster.max_failures is "
            f"{self.job.failures}. Resume from the last checkpoint with --resume --out {self.job.folder}."
        )
