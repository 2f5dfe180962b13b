"""Options of guidance, checked when they are made."""

import dataclasses
import math

VELOCITY_TERMS = (
    "velocity_linear",
    "velocity_saturated",
    "velocity_target",
    "velocity_threshold",
)
TERMS = (*VELOCITY_TERMS, "plan", "plan_potential")
SCHEDULES = ("constant", "linear", "cosine", "staged", "adaptive")


@dataclasses.dataclass(frozen=True)
class GuidanceConfig:
    """R_guidance and how strongly it counts."""

    guidance_terms: tuple[str, ...] = ("velocity_saturated",)
    """Terms that are summed: velocity_linear, plan (progress, arrival, heading) and plan_potential
    (optimum-preserving) earn nothing by walking in circles, but for heading; velocity_saturated,
    velocity_target and velocity_threshold are paid by the step, and may."""
    guidance_weights: tuple[float, ...] = ()
    """One weight a term; empty is 1 for each."""
    lambda_schedule: str = "constant"
    """How lambda moves: constant, linear, cosine, staged or adaptive (on evaluations)."""
    guidance_lambda: float = 1.0
    """lambda at the start, of every schedule."""
    final_lambda: float = 0.0
    """lambda at the end of the linear and cosine schedules."""
    refine_lambda: float = 0.35
    """lambda of the staged schedule's second stage; the third has 0."""
    refine_from: float = 0.4
    """Fraction of the training at which the second stage begins."""
    zero_from: float = 0.8
    """Fraction of the training at which the third stage begins."""
    adaptive_window: int = 3
    """K: evaluations in the mean that the adaptive schedule watches."""
    adaptive_growth: float = 1.0
    """Factor on lambda when evaluations stall or fall; 1 holds it."""
    adaptive_cap: float = 2.0
    """The adaptive schedule never raises lambda above this."""
    scale_match: float | None = None
    """c: lambda is at most c * std(R_env) / std(R_guidance); None does not bound it."""
    velocity_scale: float = 1.0
    """m/s that earn tanh(1) in velocity_saturated."""
    wanted_velocity: float = 3.0
    """m/s: the target of velocity_target and the threshold of velocity_threshold."""
    heading_weight: float = 0.0
    """Weight of facing the sub-goal, a step; standing still earns it too, so it is 0 unless asked
    for. A sub-goal's own heading counts only with it."""
    heading_threshold: float = 60.0
    """Degrees within which facing the sub-goal is rewarded."""
    progress_weight: float = 10.0
    """Weight of the decrease of the distance to the sub-goal, a metre."""
    arrival_weight: float = 5.0
    """Weight of reaching a sub-goal."""
    energy_cost: float = 0.0
    """Weight of the penalty on squared torques."""
    spin_cost: float = 0.0
    """Weight of the penalty on the torso's squared angular velocity."""

    def __post_init__(self):
        for term in self.guidance_terms:
            if term not in TERMS:
                raise ValueError(f"guidance_terms ({term}) must be among {', '.join(TERMS)}")
        if self.guidance_weights and len(self.guidance_weights) != len(self.guidance_terms):
            raise ValueError(
                f"guidance_weights ({len(self.guidance_weights)} of them) must be as many as "
                f"guidance_terms ({len(self.guidance_terms)})"
            )
        if self.lambda_schedule not in SCHEDULES:
            raise ValueError(
                f"lambda_schedule ({self.lambda_schedule}) must be one of {', '.join(SCHEDULES)}"
            )
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            for number in value if isinstance(value, tuple) else (value,):
                if isinstance(number, float) and not math.isfinite(number):
                    raise ValueError(f"{field.name} ({number}) must be finite")
        for name in ("guidance_lambda", "final_lambda", "refine_lambda", "adaptive_cap"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} ({getattr(self, name)}) must be at least 0")
        if not 0 <= self.refine_from <= self.zero_from <= 1:
            raise ValueError(
                f"refine_from ({self.refine_from}) and zero_from ({self.zero_from}) must satisfy "
                "0 <= refine_from <= zero_from <= 1"
            )
        if self.adaptive_window < 1:
            raise ValueError(f"adaptive_window ({self.adaptive_window}) must be at least 1")
        if self.adaptive_growth < 1:
            raise ValueError(f"adaptive_growth ({self.adaptive_growth}) must be at least 1")
        if self.scale_match is not None and not 0 < self.scale_match < 1:
            raise ValueError(f"scale_match ({self.scale_match}) must lie between 0 and 1")
        if self.velocity_scale <= 0:
            raise ValueError(f"velocity_scale ({self.velocity_scale}) must be greater than 0")
        if not 0 < self.heading_threshold <= 180:
            raise ValueError(f"heading_threshold ({self.heading_threshold}) must lie in (0, 180]")

    @property
    def needs_plan(self) -> bool:
        """Whether any term reads sub-goals."""
        return any(term.startswith("plan") for term in self.guidance_terms)
