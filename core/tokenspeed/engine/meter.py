"""Step times of the engine: medians over the last steps, for /metrics and the benchmarks."""

from __future__ import annotations

from statistics import median

WINDOW_STEPS = 512


class StepMeter:
    """Two rings of step times, in microseconds."""

    def __init__(self) -> None:
        self.num_steps = 0
        self._step_us = [0.0] * WINDOW_STEPS
        self._overhead_us = [0.0] * WINDOW_STEPS

    def add(self, step_s: float, model_s: float) -> None:
        """Count one step.

        Args:
            step_s: the whole turn of the loop, waiting for work excluded.
            model_s: the part spent inside the executor.
        """
        index = self.num_steps % WINDOW_STEPS
        self._step_us[index] = step_s * 1e6
        self._overhead_us[index] = (step_s - model_s) * 1e6
        self.num_steps += 1

    @property
    def step_us_p50(self) -> float:
        """Median time of a step."""
        return self._median(self._step_us)

    @property
    def overhead_us_p50(self) -> float:
        """Median time of a step outside the executor."""
        return self._median(self._overhead_us)

    def _median(self, ring: list[float]) -> float:
        filled = ring[: min(self.num_steps, WINDOW_STEPS)]
        return median(filled) if filled else 0.0
