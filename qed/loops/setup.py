"""Prepare what every training loop needs: the run's folder, model, tokenizer, problems, prompt, reward and sampler."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from qed.config.callables import require_functions
from qed.config.phases import PipelineSettings, Settings
from qed.config.unread import describe_unread
from qed.console.live import Console
from qed.data.prompts.base import PromptTemplate
from qed.data.splits import VALIDATION, LoadedProblems
from qed.errors import QedError
from qed.grading.judge import Judge
from qed.guards.signals import Stop, check_signals, watch_signals
from qed.guards.timer import StageTimer
from qed.guards.watchdog import watch_run
from qed.loops.device_fit import settle_device_defaults
from qed.loops.engine_defaults import settle_engine_defaults
from qed.loops.material import (
    Material,
    build_materials,
    describe_data,
    fit_run_problems,
    has_own_data,
    load_run_problems,
)
from qed.loops.named_models import require_named_models
from qed.loops.profile import StepProfiler, open_profiler, require_profiled_steps
from qed.loops.ranks import open_records, watch_other_ranks
from qed.loops.records import write_settings, write_tokenizer
from qed.loops.resume import find_checkpoint, list_boundaries, list_phases
from qed.loops.same_data import hash_data
from qed.loops.same_models import require_present
from qed.loops.servers import RunServers
from qed.loops.supported import require_supported, require_verdicts
from qed.models import load, lora, qlora, threads
from qed.models.peak_flops import find_peak_flops
from qed.models.precision import read_precision
from qed.rewards.grader import Grader
from qed.rewards.handed import explain_functions
from qed.rollout.grader import load_evaluator, load_grader
from qed.rollout.policy import Policy, load_policy, report_handover
from qed.rollout.shared import share_grader, share_sampler
from qed.runs import disk
from qed.runs.folder import lock_folder, open_folder
from qed.runs.log import copy_warnings
from qed.runs.manifest import parse_step
from qed.runs.run import Launch, Run
from qed.sampling.base import Sampler
from qed.trackers.start import RunTrackers, require_installed
from qed.training import checkpoints
from qed.training.background import BackgroundSaver
from qed.training.checkpoint_size import checkpoint_bytes
from qed.training.joining import join_ranks
from qed.training.parallel import Parallel
from qed.types import Problem

if TYPE_CHECKING:
    from qed.loops.background_evaluator import BackgroundEvaluator


@dataclass
class Setup:
    """Holds everything that the steps of a run use."""

    run: Run
    console: Console
    stop: Stop
    launch: Launch
    settings: Settings | PipelineSettings  # with the defaults for the device
    device: torch.device
    model: Any
    tokenizer: Any
    materials: list[Material]  # one for each phase, in order
    evaluator: Grader  # grades evaluations: the last phase's grader; if that judges no answers, with another's verdicts
    benchmarks: dict[str, list[Problem]]
    validation: list[Problem]  # training problems that are held out to choose the best checkpoint
    sampler: Sampler
    resumed: Path | None  # the checkpoint that the run resumes from
    parallel: Parallel  # the ranks of the run, of which rank 0 writes its folder
    # The first and last step of each phase, as far as known; their checkpoints are never deleted.
    boundaries: frozenset[int]
    trackers: RunTrackers | None = None  # once they have been started
    current: int = 0  # the number of the current phase, from 0
    last: int = 0  # the last step of the current phase
    signal_steps: int = 0  # steps of the whole run that had a gradient
    step: int = 0  # the current step
    peak_flops: float = 0.0  # peak floating-point operations per second of all ranks together
    best: int | None = None  # the step that BEST names
    saver: BackgroundSaver = field(default_factory=BackgroundSaver)  # saves checkpoints if run.save_async is set
    timer: StageTimer = field(default_factory=StageTimer)  # times the stages of every step
    profiler: StepProfiler | None = None  # profiles the steps of `run.profile`; None if it is not set
    background: BackgroundEvaluator | None = None  # if evaluations have dedicated servers
    # Set while a phase samples ahead: gives evaluations a sampler with the weights of the last complete step.
    lend_sampler: Callable[[], AbstractContextManager[Sampler]] | None = None
    # Set by the current phase: saves the last complete step when a signal stops the run, and returns a message.
    save_and_describe_exit: Callable[[], str] | None = None
    # Set by the current phase: saves the last complete step, if it can, when an error ends the run.
    save_after_error: Callable[[], None] = lambda: None

    @property
    def problems(self) -> list[Problem]:
        """The training problems of the current phase."""
        return self.materials[self.current].problems

    @property
    def template(self) -> PromptTemplate:
        """The prompt of the current phase."""
        return self.materials[self.current].template

    @property
    def grader(self) -> Grader:
        """The grader of the current phase."""
        return self.materials[self.current].grader

    def read_state(self) -> dict[str, Any]:
        """Read the JSON state of the checkpoint to resume from; a new run is at step 0."""
        return checkpoints.read_state(self.resumed) if self.resumed else {"step": 0}


@contextmanager
def open_run(settings: Settings | PipelineSettings, launch: Launch, name: str) -> Iterator[Setup]:
    """Open a run's folder and prepare everything for its steps; a traceback of a failure goes to the run's log.

    Args:
        settings: settings of the run.
        launch: how the run was started.
        name: name of the command, used to name a new folder.
    """
    _check_settings(settings, launch.resume)
    device = load.pick_device(settings.model.device)
    parallel = join_ranks(device, settings.parallel, settings.run.watchdog)
    require_supported(list_phases(settings), parallel)
    label = settings.model.name.rstrip("/").split("/")[-1].replace(":", "-")
    folder, aside = parallel.run_on_first(lambda: open_folder(settings.run.out, f"{name}--{label}", launch))
    console = Console(launch.json, settings.run.log_every, quiet=not parallel.is_first)
    with (
        watch_signals() as stop,
        lock_folder(folder) if parallel.is_first else nullcontext(),
        RunTrackers(settings.run.trackers if parallel.is_first else (), console) as trackers,
        open_records(folder, launch, parallel) as run,
        threads.restore_threads(),
        watch_run(run, settings.run.watchdog, parallel.is_first),
        watch_other_ranks(parallel, stop, settings.run.watchdog, run),
        copy_warnings(run.log_line),
        RunServers(run, console, parallel) as servers,
    ):
        console.log = run.log_line
        stop.together = parallel.world > 1
        try:
            with _roll_back_on_error(run, aside, launch) if parallel.is_first else nullcontext():
                settings, launch = parallel.run_on_first(partial(_settle, settings, launch, device, run, console))
                find = partial(find_checkpoint, settings, run, console, launch)
                resumed = parallel.run_on_first(lambda: find() if launch.resume else None)
                prepare = partial(threads.set_compute, settings, run, launch, device, console, parallel.local_world)
                parallel.exchange(prepare)  # all ranks stop if a signal arrives while one compiles
                peak = sum(parallel.exchange(lambda: find_peak_flops(device, read_precision(settings.model))))
                write = partial(write_settings, settings, run, launch, device, parallel, peak)
                if not launch.resume:
                    parallel.run_on_first(write)
                setup = _build_setup(settings, run, console, stop, launch, device, resumed, parallel, servers)
                if launch.resume:  # only once everything is loaded: invalid settings must not be saved as the run's
                    parallel.run_on_first(write)
                setup.peak_flops = peak
                write_tokenizer(setup.tokenizer, run)
            trackers.start(run)
            setup.trackers = trackers
            with closing(setup.evaluator), closing(setup.materials[0].grader), open_profiler(setup):
                yield setup
        finally:
            stop.together = False
            console.end_phase()


def _check_settings(settings: Settings | PipelineSettings, resume: bool) -> None:
    """Reject settings that cannot work before anything is written."""
    load.check_name(settings.model.name)
    require_present(settings.model.name, resume)
    require_installed(settings.run.trackers)
    for phase in list_phases(settings):
        require_functions(phase.data.reward)
        require_verdicts(phase)
    require_profiled_steps(settings)


def _settle(
    settings: Settings | PipelineSettings, launch: Launch, device: torch.device, run: Run, console: Console
) -> tuple[Settings | PipelineSettings, Launch]:
    """Return the settings with the defaults for the device and servers, or those of the run being resumed."""
    for line in describe_unread(settings, launch.origins):
        console.say(f"Warning: {line}")
    settings, launch = settle_device_defaults(settings, launch, device, run, console)
    settings, launch = settle_engine_defaults(settings, launch, run, console)
    return threads.restore_precision(settings, run.folder, launch), launch


@contextmanager
def _roll_back_on_error(run: Run, aside: Path | None, launch: Launch) -> Iterator[None]:
    """If preparing the run fails, restore the folder; otherwise delete the run that it replaces (`aside`)."""
    try:
        yield
    except BaseException as error:
        # After an unexpected error, keep the folder for the traceback in its log, unless it replaces an earlier run.
        if aside is not None or (not launch.resume and isinstance(error, QedError | KeyboardInterrupt)):
            run.undone = True
            failed = run.folder if aside is None else run.folder.rename(aside.with_name(f".failed{aside.name}"))
            if aside is not None:  # before deleting: the watchdog may still write a heartbeat while files are deleted
                aside.rename(run.folder)
            shutil.rmtree(failed, ignore_errors=True)
        raise
    if aside is not None:  # files still open on NFS survive this; the next start here deletes them
        shutil.rmtree(aside, ignore_errors=True)


def _require_space(settings: Settings | PipelineSettings, run: Run, policy: Policy, resumed: Path | None) -> None:
    """Require space on the disk for a run's first checkpoint and the copies of the weights that it writes with it.

    These are the reference models saved at the start of each phase, and the EMA reference inside a checkpoint.
    """
    methods = [phase.algorithm for phase in list_phases(settings)]
    saved = 0 if resumed else sum(method.reference and not method.reference_name for method in methods)
    copies = saved + any(method.reference_moves[0] > 0 for method in methods)
    disk.require_space(run, checkpoint_bytes(policy.model, copies=copies))


def _build_setup(  # noqa: PLR0913 -- a run has many parts
    settings: Settings | PipelineSettings,
    run: Run,
    console: Console,
    stop: Stop,
    launch: Launch,
    device: torch.device,
    resumed: Path | None,
    parallel: Parallel,
    servers: RunServers,
) -> Setup:
    phases = list_phases(settings)
    last, first_step = phases[-1], (resumed and parse_step(resumed.name)) or 0
    # Load the reward first, so that an error in it shows before a model is loaded.
    grader, evaluator = (share_grader(each, parallel) for each in _load_graders(last, run, console))
    check_signals("load")
    loaded, first_problems = load_run_problems(phases)
    _say_loaded(loaded, [*_list_too_few(phases, loaded.problems, first_problems)], grader, console)
    check_signals("load")
    policy = load_policy(last, [*loaded.problems, *first_problems], device, resumed)
    servers.connect(policy, last, loaded.problems, device, first_step)
    policy.sampler = share_sampler(policy.sampler, policy.model, parallel)
    parallel.run_on_first(lambda: _require_space(settings, run, policy, resumed))
    if resumed is not None:
        console.say(f"Resuming from {resumed}.")
    loaded = fit_run_problems(loaded, policy, last, run, console)
    own = Material(loaded.problems, policy.template, grader)
    materials = build_materials(phases, own, first_problems, policy, run, console)
    require_named_models(phases, policy.tokenizer)
    hashes = hash_data(phases, materials, loaded, run, launch, parallel, console.say)
    run.truncate(first_step)
    run.event("data", **describe_data(phases, loaded, materials), **hashes)
    _report_setup(loaded, policy, settings, run, console)
    return Setup(
        run=run,
        console=console,
        stop=stop,
        launch=launch,
        settings=settings,
        device=device,
        model=policy.model,
        tokenizer=policy.tokenizer,
        materials=materials,
        evaluator=evaluator,
        benchmarks=loaded.benchmarks,
        validation=loaded.validation,
        sampler=policy.sampler,
        resumed=resumed,
        parallel=parallel,
        boundaries=list_boundaries(settings),
    )


def _say_loaded(loaded: LoadedProblems, too_few: list[str], grader: Grader, console: Console) -> None:
    """Print which problems are left out, where too few are left, and what user-defined functions receive."""
    left_out = [f"Left out {count} {reason}." for reason, count in loaded.left_out.items()]
    drawn = [
        f"Held out {'for' if task == VALIDATION else 'of'} {task}: {subset}." for task, subset in loaded.subsets.items()
    ]
    for line in [*left_out, *drawn, *too_few, *explain_functions(grader.functions, loaded.problems)]:
        console.say(line)


def _list_too_few(
    phases: Sequence[Settings], problems: Sequence[Problem], first_problems: Sequence[Problem]
) -> Iterator[str]:
    """Yield a message for each phase with its own data that has fewer problems than `data.unique_examples`."""
    both = has_own_data(phases)
    chosen = [*([(phases[0], first_problems)] if both else []), (phases[-1], problems)]
    for settings, own in chosen:
        wanted, where = settings.data.unique_examples, f" in {settings.method}" if both else ""
        if len(own) < wanted:
            yield f"data.unique_examples is {wanted:,}{where}, but only {len(own):,} problems are left."


def _load_graders(last: Settings, run: Run, console: Console) -> tuple[Grader, Grader]:
    """Load the grader of the last phase and the grader of the evaluations."""
    grader = load_grader(last.data, last.sampling.max_tokens, run.reward_log)
    # A stop ends a judge's processes while another thread may still grade answers that the checkpoint needs.
    shared = not (last.rollout.max_staleness and isinstance(grader, Judge))
    chosen = grader if shared else load_grader(last.data, last.sampling.max_tokens, run.reward_log)
    evaluator = load_evaluator(last.data, last.sampling.max_tokens, chosen)
    if grader.judge is None:
        console.say(f"data.reward judges no answers; evaluations use the verdict of {evaluator.judge}.")
    return grader, evaluator


def _report_setup(
    loaded: LoadedProblems, policy: Policy, settings: Settings | PipelineSettings, run: Run, console: Console
) -> None:
    """Print the run's model and problems, and anything unusual about them."""
    if settings.model.lora_rank and (share := lora.compute_unadapted_share(policy.model)):
        run.event("experts_not_adapted", share=round(share, 4))
        console.say(
            f"The experts, {share:.0%} of the weights, have no adapters and are not trained; the other linear layers "
            "have adapters. To adapt the experts too, add experts to model.lora_targets: each forward pass then adds "
            "the adapters to a copy of the experts, which doubles their memory."
        )
    reason = report_handover(policy.sampler, console.say)
    if reason is not None:
        run.event("sampler_handed_over", reason=reason)
    parameters = qlora.count_weights(policy.model)
    device = next(policy.model.parameters()).device.type
    console.say(
        f"{run.folder}: {settings.model.name} ({parameters / 1e6:.2f} M parameters, {device}, "
        f"{torch.get_num_threads()} threads), {len(loaded.problems)} training problems, "
        + (", ".join(f"{len(some)} held out ({name})" for name, some in loaded.benchmarks.items()) or "none held out")
    )
