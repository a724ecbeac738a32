"""The control plane: decides what each step computes. Implemented in C++ (`csrc/`).

A `Scheduler` owns every request, the KV cache's blocks and the slots; it never touches tensors.
The engine drives it (`plan`, run, `commit`); single-threaded, no clock and no entropy inside.
`tokenspeed.contracts.step` says what the arrays of a `StepPlan` mean.
"""

from __future__ import annotations

from tokenspeed._core import (
    FINISH_REASONS,
    KV_EVENTS,
    KV_MEDIUMS,
    MATCH_ENDS,
    CommitResult,
    EventBatch,
    GroupSpec,
    PlanDecoder,
    PlanEncoder,
    PlanRing,
    PrefixKeys,
    PrefixView,
    Scheduler,
    SchedulerConfig,
    StepPlan,
    transition_table,
)

__all__ = [
    "FINISH_REASONS",
    "KV_EVENTS",
    "KV_MEDIUMS",
    "MATCH_ENDS",
    "CommitResult",
    "EventBatch",
    "GroupSpec",
    "PlanDecoder",
    "PlanEncoder",
    "PlanRing",
    "PrefixKeys",
    "PrefixView",
    "Scheduler",
    "SchedulerConfig",
    "StepPlan",
    "transition_table",
]
