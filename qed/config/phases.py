"""Combines the sections of `settings.py` into the settings of a phase and of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from qed.config.ranks_settings import ClusterSettings, ParallelSettings
from qed.config.sampling_settings import EvaluationSettings, RolloutSettings, SamplingSettings
from qed.config.settings import DataSettings, LearnerSettings, ModelSettings, RunSettings, require, shelf_field


@dataclass(frozen=True)
class Settings:
    """Settings of one phase: SFT, DPO or an online algorithm."""

    method: str
    """Name of the algorithm."""
    algorithm: Any
    """Settings of the algorithm; its dataclass is in algorithms/."""
    model: ModelSettings = field(default_factory=ModelSettings)
    data: DataSettings = field(default_factory=DataSettings)
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    rollout: RolloutSettings = field(default_factory=RolloutSettings)
    learner: LearnerSettings = field(default_factory=LearnerSettings)
    parallel: ParallelSettings = field(default_factory=ParallelSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    run: RunSettings = field(default_factory=RunSettings)

    def __post_init__(self) -> None:
        """Reject settings that the algorithm does not support."""
        self.algorithm.check(self.sampling.group_size)
        require(
            not self.data.window or not (self.algorithm.online or self.algorithm.together > 1),
            f"data.window splits demonstrations into windows, but qed {self.method} does not train on demonstrations. "
            "Remove it, or use qed sft.",
        )

    @property
    def imitates(self) -> bool:
        """Return whether the phase imitates demonstrations, like SFT, and neither samples nor compares pairs."""
        return not self.algorithm.online and self.algorithm.together == 1

    @property
    def compares(self) -> bool:
        """Return whether the phase compares the two replies of preference pairs in the data, like DPO."""
        return not self.algorithm.online and self.algorithm.together == 2


@dataclass(frozen=True)
class PhaseSettings:
    """One phase of a pipeline: its algorithm, its data and its learner."""

    algorithm: Any
    """Settings of the algorithm."""
    method: str = shelf_field("algorithms", "sft")
    """Name of the algorithm."""
    data: DataSettings = field(default_factory=DataSettings)
    learner: LearnerSettings = field(default_factory=LearnerSettings)


@dataclass(frozen=True)
class PipelineSettings:
    """SFT, then RL, with all other settings shared; step numbers continue in the second phase.

    Every evaluation uses the prompt, the reward and the held-out problems of the last phase, so that all steps of the
    run are comparable.
    """

    sft: PhaseSettings
    rl: PhaseSettings
    skip_sft: bool = False
    """Skip the SFT phase and start with RL."""
    skip_rl: bool = False
    """Skip the RL phase and stop after SFT."""
    model: ModelSettings = field(default_factory=ModelSettings)
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    rollout: RolloutSettings = field(default_factory=RolloutSettings)
    parallel: ParallelSettings = field(default_factory=ParallelSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    run: RunSettings = field(default_factory=RunSettings)

    def __post_init__(self) -> None:
        """Reject a run that would do nothing."""
        require(not (self.skip_sft and self.skip_rl), "skip_sft and skip_rl together leave nothing to do.")
        self.phases()

    def phases(self) -> list[Settings]:
        """Return the settings of the phases that are not skipped, in order."""
        names: list[tuple[Literal["sft", "rl"], bool]] = [("sft", self.skip_sft), ("rl", self.skip_rl)]
        return [self.phase(name) for name, skipped in names if not skipped]

    def phase(self, name: Literal["sft", "rl"]) -> Settings:
        """Return the settings of one phase as if it were a separate run."""
        part: PhaseSettings = getattr(self, name)
        return Settings(
            method=part.method,
            algorithm=part.algorithm,
            model=self.model,
            # `data.window` without a phase applies to both, but only SFT has windows.
            data=part.data if name == "sft" else replace(part.data, window=0),
            sampling=self.sampling,
            rollout=self.rollout,
            learner=part.learner,
            parallel=self.parallel,
            cluster=self.cluster,
            evaluation=self.evaluation,
            run=self.run,
        )
