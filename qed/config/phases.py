"""The settings of a phase and of a pipeline: the sections of `settings.py` put together."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from qed.config.settings import (
    DataSettings,
    EvaluationSettings,
    LearnerSettings,
    ModelSettings,
    RunSettings,
    SamplingSettings,
    require,
    shelf_field,
)


@dataclass(frozen=True)
class Settings:
    """The settings of one phase: SFT, or one of the online algorithms."""

    method: str
    """The algorithm's name on its shelf."""
    algorithm: Any
    """The algorithm's own settings; its dataclass stands in algorithms/."""
    model: ModelSettings = field(default_factory=ModelSettings)
    data: DataSettings = field(default_factory=DataSettings)
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    learner: LearnerSettings = field(default_factory=LearnerSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    run: RunSettings = field(default_factory=RunSettings)

    def __post_init__(self) -> None:
        """Refuse what only the algorithm knows to be impossible."""
        self.algorithm.check(self.sampling.group_size)
        require(
            not self.data.window or not (self.algorithm.online or self.algorithm.together > 1),
            f"data.window makes windows of demonstrations, and qed {self.method} has none to imitate. Leave it out, or "
            "give it to qed sft.",
        )


@dataclass(frozen=True)
class PhaseSettings:
    """One phase of a pipeline: which algorithm, and its learner."""

    algorithm: Any
    """The algorithm's own settings."""
    method: str = shelf_field("algorithms", "sft")
    """The algorithm's name on its shelf."""
    learner: LearnerSettings = field(default_factory=LearnerSettings)


@dataclass(frozen=True)
class PipelineSettings:
    """SFT, then RL, with everything else shared; the steps of the second phase follow those of the first."""

    sft: PhaseSettings
    rl: PhaseSettings
    skip_sft: bool = False
    """Begin with RL."""
    skip_rl: bool = False
    """End after SFT."""
    model: ModelSettings = field(default_factory=ModelSettings)
    data: DataSettings = field(default_factory=DataSettings)
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    run: RunSettings = field(default_factory=RunSettings)

    def __post_init__(self) -> None:
        """Refuse a run that would do nothing."""
        require(not (self.skip_sft and self.skip_rl), "skip_sft and skip_rl together leave nothing to do.")
        self.phases()

    def phases(self) -> list[Settings]:
        """The settings of the phases that are not skipped, in order."""
        wanted: list[tuple[Literal["sft", "rl"], bool]] = [("sft", self.skip_sft), ("rl", self.skip_rl)]
        return [self.phase(name) for name, skipped in wanted if not skipped]

    def phase(self, name: Literal["sft", "rl"]) -> Settings:
        """The settings of one phase as if it were a run of its own."""
        part: PhaseSettings = getattr(self, name)
        return Settings(
            method=part.method,
            algorithm=part.algorithm,
            model=self.model,
            data=self.data if name == "sft" else replace(self.data, window=0),
            sampling=self.sampling,
            learner=part.learner,
            evaluation=self.evaluation,
            run=self.run,
        )
