"""Gated delta rule layers: short convolution, recurrence over a state row, gated norm.

Legend: T tokens, D hidden, C channels of the convolution, J key heads, N value heads, K key dim,
V value dim, W taps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tokenspeed.contracts.attention import StateView
from tokenspeed.contracts.model import CacheField
from tokenspeed.contracts.placement import ParallelGroup, Replicate, Shard
from tokenspeed.layers.linear import Linear
from tokenspeed.layers.norm import GatedRMSNorm
from tokenspeed.layers.placements import LayerPlacement, column_parallel, row_parallel
from tokenspeed.layers.weights import WeightSlot
from tokenspeed.ops import conv, linear_attention
from tokenspeed.ops.state import in_stages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from tokenspeed.contracts.model import ForwardContext, ModelContext, StateRows
    from tokenspeed.contracts.weights import LinearWeight
    from tokenspeed.layers.rotary import Angles


@dataclass(frozen=True, slots=True)
class DeltaShape:
    """Geometry of a gated delta rule layer.

    Args:
        key_heads, key_dim: J and K; queries have the same.
        value_heads, value_dim: N, a multiple of J, and V.
        taps: W of the convolution.
    """

    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    taps: int

    @property
    def channels(self) -> int:
        """C: queries, keys and values of all heads."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def state_fields(self) -> tuple[CacheField, ...]:
        """Return what one layer keeps of a sequence, float32: errors would add up."""
        recurrent = (self.value_heads, self.key_dim, self.value_dim)
        return (
            CacheField("conv", (self.channels, self.taps - 1), "float32"),
            CacheField("recurrent", recurrent, "float32"),
        )


class CausalConv:
    """Depthwise convolution over the last W inputs of each channel, then silu."""

    placement = LayerPlacement(
        Shard(ParallelGroup.ATTN_TP, 1),
        Shard(ParallelGroup.ATTN_TP, 0),
        Shard(ParallelGroup.ATTN_TP, 1),
    )

    def __init__(self, context: ModelContext, channels: int, taps: int) -> None:
        self.shape = (channels, 1, taps)
        self._device = context.device
        self._convolve: Callable[..., torch.Tensor] = context.kernels.bind(conv.causal_conv)
        self._weight_CW: torch.Tensor

    def weight_slots(self, name: str) -> Iterator[tuple[str, WeightSlot]]:
        """Yield the slot of `name`.weight."""
        yield f"{name}.weight", WeightSlot(self.shape, self._accept)

    def __call__(
        self, x_TC: torch.Tensor, state: torch.Tensor, rows: StateRows, step: ForwardContext
    ) -> torch.Tensor:
        """Return (T, C)."""
        return in_stages(partial(self._apply, state), (x_TC,), rows, step.query_start)

    def _apply(
        self, state: torch.Tensor, x_TC: torch.Tensor, rows: StateRows, query_start: Any
    ) -> torch.Tensor:
        return self._convolve(x_TC, self._weight_CW, state, rows, query_start)

    def _accept(self, weight: LinearWeight) -> None:
        assert weight.plain is not None, "convolutions are never packed"
        self._weight_CW = weight.plain[:, 0].to(self._device)


class DeltaGates:
    """Decay and learning rate of each head."""

    placement = LayerPlacement(
        Shard(ParallelGroup.ATTN_TP, 1),
        Shard(ParallelGroup.ATTN_TP, 0),
        Shard(ParallelGroup.ATTN_TP, 1),
    )

    def __init__(self, context: ModelContext, heads: int) -> None:
        self.heads = heads
        self._device = context.device
        self._compute: Callable[..., tuple[torch.Tensor, torch.Tensor]] = context.kernels.bind(
            linear_attention.delta_gates
        )
        self._a_log: torch.Tensor
        self._dt_bias: torch.Tensor

    def weight_slots(self, name: str) -> Iterator[tuple[str, WeightSlot]]:
        """Yield the slots of `name`.A_log and `name`.dt_bias."""
        yield f"{name}.A_log", WeightSlot((self.heads,), self._accept_a_log)
        yield f"{name}.dt_bias", WeightSlot((self.heads,), self._accept_dt_bias)

    def __call__(self, a_TN: torch.Tensor, b_TN: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (log decay, learning rate), (T, N) float32 each."""
        return self._compute(a_TN, b_TN, self._a_log, self._dt_bias)

    def _accept_a_log(self, weight: LinearWeight) -> None:
        assert weight.plain is not None, "vectors are never packed"
        self._a_log = weight.plain.to(self._device)

    def _accept_dt_bias(self, weight: LinearWeight) -> None:
        assert weight.plain is not None, "vectors are never packed"
        self._dt_bias = weight.plain.to(self._device)


class GatedDeltaNet:
    """One linear attention layer; its state lies in the fields "conv" and "recurrent".

    The input projection is stored as in_proj_qkv, in_proj_z, in_proj_b and in_proj_a; a checkpoint
    that stores it otherwise overrides `input_slots`.
    """

    placement = LayerPlacement(Replicate(), Shard(ParallelGroup.ATTN_TP, 0), Replicate())

    def __init__(
        self, context: ModelContext, hidden_size: int, shape: DeltaShape, *, layer: int, eps: float
    ) -> None:
        self.layer = layer
        self.shape = shape
        heads, values = shape.value_heads, shape.value_heads * shape.value_dim
        keys = shape.key_heads * shape.key_dim
        self.qkv_widths = (keys, keys, values)
        self.widths = (shape.channels, values, heads, heads)
        group = ParallelGroup.ATTN_TP
        self.inputs = Linear(context, hidden_size, self.widths, placement=column_parallel(group))
        self.conv = CausalConv(context, shape.channels, shape.taps)
        self.gates = DeltaGates(context, heads)
        self.norm = GatedRMSNorm(context, shape.value_dim, eps=eps)
        self.output = Linear(context, values, (hidden_size,), placement=row_parallel(group))
        self._apply_rule: Callable[..., torch.Tensor] = context.kernels.bind(
            linear_attention.gated_delta_rule
        )

    def weight_slots(self, name: str) -> Iterator[tuple[str, WeightSlot]]:
        """Yield the slots below module `name`."""
        yield from self.input_slots(name)
        yield from self.conv.weight_slots(f"{name}.conv1d")
        yield from self.gates.weight_slots(name)
        yield from self.norm.weight_slots(f"{name}.norm")
        yield from self.output.weight_slots(f"{name}.out_proj")

    def input_slots(self, name: str) -> Iterator[tuple[str, WeightSlot]]:
        """Yield the slots of the input projection."""
        return self.inputs.weight_slots(*(f"{name}.in_proj_{part}" for part in ("qkv", *"zba")))

    def __call__(self, x_TD: torch.Tensor, step: ForwardContext, angles: Angles) -> torch.Tensor:
        """Return (T, D)."""
        state, rows, shape = step.kv[self.layer], step.state_rows[self.layer], self.shape
        assert isinstance(state, StateView), "the layer's cache group is no state group"
        qkv_TC, z, b_TN, a_TN = self.inputs(x_TD).split_with_sizes(self.widths, -1)
        mixed_TC = self.conv(qkv_TC, state.fields["conv"], rows, step)
        q, k, v = mixed_TC.split_with_sizes(self.qkv_widths, -1)
        keys = (-1, shape.key_heads, shape.key_dim)
        values = (-1, shape.value_heads, shape.value_dim)
        inputs = (q.view(keys), k.view(keys), v.view(values), *self.gates(a_TN, b_TN))
        recur = partial(self._recur, state.fields["recurrent"])
        mixed_TNV = in_stages(recur, inputs, rows, step.query_start)
        return self.output(self.norm(mixed_TNV, z.view(values)).flatten(-2))

    def _recur(self, state: torch.Tensor, *inputs: Any) -> torch.Tensor:
        *tokens, rows, query_start = inputs
        return self._apply_rule(*tokens, state, rows, query_start)
