"""Rotary position embedding: one table of cosines and sines, shared by all layers of a model.

Knows the frequency rules of `rope_scaling` / `rope_parameters`; the rotation is an operator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tokenspeed.checkpoint.json_file import shown
from tokenspeed.errors import ConfigError
from tokenspeed.layers.placements import bind_held, held
from tokenspeed.ops import rotary

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from tokenspeed.contracts.model import ModelContext

_DEFAULT_THETA = 10_000.0
_MAX_NUMBER = 1e30
_YARN_NUMBERS = ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim")
_REQUIRED_FIELDS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
    "yarn": ("factor", "original_max_position_embeddings"),
}


@dataclass(frozen=True, slots=True)
class RopeParameters:
    """How positions become angles.

    Args:
        theta: base wavelength.
        kind: "default", "linear", "llama3" or "yarn".
        fields: the numbers of that kind, by their config.json names.
        partial: share of a head's dims that is rotated, the first ones.
    """

    theta: float
    kind: str = "default"
    fields: Mapping[str, Any] = field(default_factory=dict)
    partial: float = 1.0

    @classmethod
    def read(
        cls,
        config: Mapping[str, Any],
        *,
        default_theta: float = _DEFAULT_THETA,
        default_partial: float | None = None,
    ) -> RopeParameters:
        """Read `rope_parameters`, or the older `rope_theta` and `rope_scaling`.

        Args:
            default_theta: of the architecture, where the config has none.
            default_partial: the same for the partial rotation; None: it has whole ones only.
        Raises:
            ConfigError: an unsupported kind, a missing or impossible number, a partial rotation
                that the architecture does not have.
        """
        fields = _fields_of(config)
        kind = _first_given(fields.pop("rope_type", None), fields.pop("type", None), "default")
        own_theta = fields.pop("rope_theta", None)
        theta = _first_given(own_theta, config.get("rope_theta"), default_theta)
        if kind == "yarn":
            fields.setdefault(
                "original_max_position_embeddings", config.get("max_position_embeddings")
            )
        _check_number("rope_theta", theta, above=1.0)
        _check_kind(kind, fields)
        partial = _first_given(
            fields.pop("partial_rotary_factor", None),
            config.get("partial_rotary_factor"),
            default_partial or 1.0,
        )
        _check_partial(partial, is_allowed=default_partial is not None)
        return cls(float(theta), kind, fields, float(partial))

    def rotated(self, head_dim: int) -> int:
        """Return how many dims of a head are rotated.

        Raises:
            ConfigError: an odd number, or none.
        """
        dims = int(head_dim * self.partial)
        if dims % 2 or not dims:
            raise ConfigError(
                f"config.json has partial_rotary_factor = {self.partial}, which rotates {dims} of "
                f"head_dim = {head_dim}; an even number is needed; correct config.json"
            )
        return dims


Angles = tuple["torch.Tensor", "torch.Tensor"]
"""Cosines and sines of one step's tokens: (T, 1, A) each, see `ops.rotary.rotary_angles`."""


class RotaryEmbedding:
    """Rotates queries and keys by their positions (rotate-half convention)."""

    def __init__(self, context: ModelContext, rope: RopeParameters, head_dim: int) -> None:
        self._rotate: Callable[..., torch.Tensor] = context.kernels.bind(
            rotary.apply_rotary, head_dim=head_dim
        )
        positions, turned = context.max_context_tokens, rope.rotated(head_dim)
        self._look_up: Callable[..., Angles] = bind_held(
            context,
            self,
            rotary.rotary_angles,
            method="angles",
            weights=(((positions,), (turned,)),),
            dtypes=(str(context.dtype).removeprefix("torch."),) * 2,
            head_dim=head_dim,
        )
        self._table_PA: torch.Tensor = held(context)
        if context.recorder is None:
            table_PA = build_table(rope, turned, positions)
            self._table_PA = table_PA.to(context.device, context.dtype)

    def angles(self, positions_T: torch.Tensor) -> Angles:
        """Look up a step's cosines and sines, once for all layers."""
        return self._look_up(positions_T, self._table_PA)

    def __call__(self, x_TNH: torch.Tensor, angles: Angles) -> torch.Tensor:
        """Return the heads of `x_TNH` rotated; queries and keys may stand in one tensor."""
        return self._rotate(x_TNH, *angles)


def build_table(rope: RopeParameters, head_dim: int, num_positions: int) -> torch.Tensor:
    """Return (num_positions, head_dim) float32: cosines, then sines, of each position.

    Args:
        head_dim: dims that are rotated.
    """
    import torch

    frequencies, amplitude = _FREQUENCIES[rope.kind](rope, head_dim)
    angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * frequencies[None, :]
    return torch.cat((angles.cos() * amplitude, angles.sin() * amplitude), dim=-1)


def _fields_of(config: Mapping[str, Any]) -> dict[str, Any]:
    for name in ("rope_parameters", "rope_scaling"):
        value = config.get(name)
        if value is not None and not isinstance(value, dict):
            raise ConfigError(
                f"config.json has {name} = {shown(value)}, an object is needed; correct config.json"
            )
    return dict(config.get("rope_parameters") or config.get("rope_scaling") or {})


def _first_given(*values: Any) -> Any:
    return next(value for value in values if value is not None)


def _check_kind(kind: object, fields: Mapping[str, Any]) -> None:
    if not isinstance(kind, str) or kind not in _REQUIRED_FIELDS:
        raise ConfigError(
            f"rope_type is {shown(kind)}, supported are {', '.join(sorted(_REQUIRED_FIELDS))}; "
            "use a checkpoint with one of these"
        )
    for name in _REQUIRED_FIELDS[kind]:
        _check_number(f"rope_type {kind!r} with {name}", fields.get(name))
    if kind == "llama3" and fields["low_freq_factor"] >= fields["high_freq_factor"]:
        raise ConfigError(
            f"rope_type 'llama3' has low_freq_factor = {fields['low_freq_factor']}, less than "
            f"high_freq_factor = {fields['high_freq_factor']} is needed; correct config.json"
        )
    if kind == "yarn":
        for name in _YARN_NUMBERS:
            if fields.get(name):  # null and 0 mean that it is not given
                _check_number(f"rope_type 'yarn' with {name}", fields[name])


def _check_partial(partial: object, *, is_allowed: bool) -> None:
    if not is_allowed and partial != 1.0:
        raise ConfigError(
            f"partial_rotary_factor is {shown(partial)}, only 1.0 is supported by this "
            "architecture; use another checkpoint"
        )
    _check_number("partial_rotary_factor", partial)
    if partial > 1.0:  # type: ignore[operator]
        raise ConfigError(
            f"partial_rotary_factor is {shown(partial)}, at most 1.0 is needed; correct config.json"
        )


def _check_number(name: str, value: object, *, above: float = 0.0) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not above < value <= _MAX_NUMBER:  # type: ignore[operator]
        raise ConfigError(
            f"config.json has {name} = {shown(value)}, a number above {above:g} is needed; correct "
            "config.json"
        )


def _default(rope: RopeParameters, head_dim: int) -> tuple[torch.Tensor, float]:
    import torch

    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    return 1.0 / (rope.theta**exponents), 1.0


def _linear(rope: RopeParameters, head_dim: int) -> tuple[torch.Tensor, float]:
    return _default(rope, head_dim)[0] / rope.fields["factor"], 1.0


def _llama3(rope: RopeParameters, head_dim: int) -> tuple[torch.Tensor, float]:
    """Divide low frequencies by `factor`, keep high ones, blend between.

    Source: Llama 3.1 reference code, `apply_scaling`.
    """
    import torch

    frequencies, amplitude = _default(rope, head_dim)
    factor, low, high = (
        rope.fields[name] for name in ("factor", "low_freq_factor", "high_freq_factor")
    )
    original_tokens = rope.fields["original_max_position_embeddings"]
    wavelengths = 2 * math.pi / frequencies
    slow = wavelengths > original_tokens / low
    fast = wavelengths < original_tokens / high
    keep = (original_tokens / wavelengths - low) / (high - low)
    blended = (1 - keep) * frequencies / factor + keep * frequencies
    scaled = torch.where(slow, frequencies / factor, torch.where(fast, frequencies, blended))
    return scaled, amplitude


def _yarn(rope: RopeParameters, head_dim: int) -> tuple[torch.Tensor, float]:
    """Interpolate slow dimensions, keep fast ones, and scale the amplitude.

    Source: YaRN, Peng et al. 2023, sections 3.2 to 3.4.
    """
    import torch

    fields = rope.fields
    factor = float(fields["factor"])
    frequencies, _ = _default(rope, head_dim)
    low, high = (
        _yarn_dimension(rope, head_dim, rotations)
        for rotations in (fields.get("beta_fast") or 32, fields.get("beta_slow") or 1)
    )
    if fields.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = (high - low) or 0.001
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    scaled = frequencies / factor * ramp + frequencies * (1 - ramp)
    return scaled, _yarn_amplitude(fields, factor)


def _yarn_dimension(rope: RopeParameters, head_dim: int, rotations: float) -> float:
    """Return the dimension that turns `rotations` times over the original context."""
    turns = rope.fields["original_max_position_embeddings"] / (rotations * 2 * math.pi)
    return head_dim * math.log(turns) / (2 * math.log(rope.theta))


def _yarn_amplitude(fields: Mapping[str, Any], factor: float) -> float:
    def amplitude(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if fields.get("attention_factor") is not None:
        return float(fields["attention_factor"])
    if fields.get("mscale") and fields.get("mscale_all_dim"):
        return amplitude(fields["mscale"]) / amplitude(fields["mscale_all_dim"])
    return amplitude(1.0)


_FREQUENCIES: Mapping[str, Callable[[RopeParameters, int], tuple[torch.Tensor, float]]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
