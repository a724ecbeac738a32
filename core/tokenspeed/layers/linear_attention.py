"""Gated delta rule layers: short convolution, recurrence over a state row, gated norm.

Legend: T tokens, D hidden, C channels of the convolution, J key heads, N value heads, K key dim,
V value dim, W taps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from tokenspeed.contracts.attention import StateView
from tokenspeed.contracts.model import CacheField
from tokenspeed.contracts.placement import ParallelGroup
from tokenspeed.layers.linear import Linear
from tokenspeed.layers.norm import GatedRMSNorm
from tokenspeed.layers.placements import bind_held, column_parallel, held, row_parallel
from tokenspeed.layers.weights import WeightSlot
from tokenspeed.ops import conv, linear_attention
from tokenspeed.ops.state import in_stages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

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
    def widths(self) -> tuple[int, int, int]:
        """Channels of the queries, keys and values of all heads, cut over ranks by key heads."""
        keys = self.key_heads * self.key_dim
        return keys, keys, self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """C: queries, keys and values of all heads."""
        return sum(self.widths)

    def state_fields(self) -> tuple[CacheField, ...]:
        """Return what one layer keeps of a sequence, float32: errors would add up."""
        recurrent = (self.value_heads, self.key_dim, self.value_dim)
        units = self.key_heads
        return (
            CacheField("conv", (self.channels, self.taps - 1), "float32", units),
            CacheField("recurrent", recurrent, "float32", units),
        )


class CausalConv:
    """Depthwise convolution over the last W inputs of each channel, then silu.

    Its past lies in field "conv" of the layer's state.
    """

    PLACEMENT = "T C, C _ -> T C"

    def __init__(self, context: ModelContext, shape: DeltaShape, *, layer: int) -> None:
        self.layer = layer
        self.shape = (shape.channels, 1, shape.taps)
        self.spread = {"T": ParallelGroup.ATTN_DP, "C": ParallelGroup.ATTN_TP}
        self.parts = {"C": shape.widths}
        self.units = {"C": (shape.key_heads,) * len(shape.widths)}
        self._device = context.device
        self._convolve: Callable[..., torch.Tensor] = context.kernels.bind(conv.causal_conv)
        self._run: Callable[..., torch.Tensor] = self._convolve_rows
        if context.recorder is not None:
            self._run = context.recorder.module(
                self,
                self.PLACEMENT,
                weights=((shape.widths, (shape.taps,)),),
                spread=self.spread,
                units=self.units,
            )
        self._weight_CW: torch.Tensor

    def weight_slots(self, name: str) -> Iterator[tuple[str, WeightSlot]]:
        """Yield the slot of `name`.weight."""
        slot = WeightSlot(self.shape, self._accept, "C _ _", self.spread, self.parts, self.units)
        yield f"{name}.weight", slot

    def __call__(self, x_TC: torch.Tensor, step: ForwardContext) -> torch.Tensor:
        """Return (T, C)."""
        return self._run(x_TC, step)

    def _convolve_rows(self, x_TC: torch.Tensor, step: ForwardContext) -> torch.Tensor:
        state, rows = state_of(self.layer, "conv", step)
        return in_stages(partial(self._apply, state), (x_TC,), rows, step.query_start)

    def _apply(
        self, state: torch.Tensor, x_TC: torch.Tensor, rows: StateRows, query_start: Any
    ) -> torch.Tensor:
        return self._convolve(x_TC, self._weight_CW, state, rows, query_start)

    def _accept(self, weight: LinearWeight) -> None:
        assert weight.plain is not None, "convolutions are never packed"
        self._weight_CW = weight.plain[:, 0].to(self._device)


class DeltaGates:
    """Decay and learning rate of each head; heads are cut over ranks by key heads."""

    def __init__(self, context: ModelContext, shape: DeltaShape) -> None:
        self.heads = shape.value_heads
        self.spread = {"N": ParallelGroup.ATTN_TP}
        self.units = {"N": (shape.key_heads,)}
        self._device = context.device
        self._compute: Callable[..., tuple[torch.Tensor, torch.Tensor]] = bind_held(
            context,
            self,
            linear_attention.delta_gates,
            weights=(((self.heads,),), ((self.heads,),)),
            spread=self.spread,
            units=self.units,
        )
        self._a_log: torch.Tensor = held(context)
        self._dt_bias: torch.Tensor = held(context)

    def weight_slots(self, name: str) -> Iterator[tuple[str, WeightSlot]]:
        """Yield the slots of `name`.A_log and `name`.dt_bias."""
        for own_name, accept in (("A_log", self._accept_a_log), ("dt_bias", self._accept_dt_bias)):
            slot = WeightSlot((self.heads,), accept, "N", self.spread, units=self.units)
            yield f"{name}.{own_name}", slot

    def __call__(self, a_TN: torch.Tensor, b_TN: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (log decay, learning rate), (T, N) float32 each."""
        return self._compute(a_TN, b_TN, self._a_log, self._dt_bias)

    def _accept_a_log(self, weight: LinearWeight) -> None:
        assert weight.plain is not None, "vectors are never packed"
        self._a_log = weight.plain.to(self._device)

    def _accept_dt_bias(self, weight: LinearWeight) -> None:
        assert weight.plain is not None, "vectors are never packed"
        self._dt_bias = weight.plain.to(self._device)


class DeltaRule:
    """The recurrence of a layer; its state lies in field "recurrent"."""

    PLACEMENT = "T J _, T J _, T N V!, T N, T N -> T N V!; J<N"
    spread: ClassVar[Mapping[str, ParallelGroup]] = {
        "T": ParallelGroup.ATTN_DP,
        "J": ParallelGroup.ATTN_TP,
        "N": ParallelGroup.ATTN_TP,
    }

    def __init__(self, context: ModelContext, *, layer: int) -> None:
        self.layer = layer
        self._apply_rule: Callable[..., torch.Tensor] = context.kernels.bind(
            linear_attention.gated_delta_rule
        )
        self._run: Callable[..., torch.Tensor] = self._recur_rows
        if context.recorder is not None:
            self._run = context.recorder.module(self, self.PLACEMENT, spread=self.spread)

    def __call__(
        self,
        q_TJK: torch.Tensor,
        k_TJK: torch.Tensor,
        v_TNV: torch.Tensor,
        log_decay_TN: torch.Tensor,
        beta_TN: torch.Tensor,
        step: ForwardContext,
    ) -> torch.Tensor:
        """Return (T, N, V)."""
        return self._run(q_TJK, k_TJK, v_TNV, log_decay_TN, beta_TN, step)

    def _recur_rows(self, *inputs: Any) -> torch.Tensor:
        *tokens, step = inputs
        state, rows = state_of(self.layer, "recurrent", step)
        return in_stages(partial(self._recur, state), tokens, rows, step.query_start)

    def _recur(self, state: torch.Tensor, *inputs: Any) -> torch.Tensor:
        *tokens, rows, query_start = inputs
        return self._apply_rule(*tokens, state, rows, query_start)


def state_of(layer: int, field: str, step: ForwardContext) -> tuple[torch.Tensor, StateRows]:
    """Return one field of a layer's state, of all sequences, and the rows of the step."""
    view = step.kv[layer]
    assert isinstance(view, StateView), "the layer's cache group is no state group"
    return view.fields[field], step.state_rows[layer]


class GatedDeltaNet:
    """One linear attention layer; its state lies in the fields "conv" and "recurrent".

    The input projection is stored as in_proj_qkv, in_proj_z, in_proj_b and in_proj_a; a checkpoint
    that stores it otherwise overrides `input_slots`.
    """

    def __init__(
        self, context: ModelContext, hidden_size: int, shape: DeltaShape, *, layer: int, eps: float
    ) -> None:
        self.shape = shape
        heads, values = shape.value_heads, shape.value_heads * shape.value_dim
        self.widths = (shape.channels, values, heads, heads)
        units, group = (shape.key_heads,), ParallelGroup.ATTN_TP
        self.inputs = Linear(
            context,
            hidden_size,
            (shape.widths, values, heads, heads),
            spread=column_parallel(group),
            units={"O": units * 6},
        )
        self.conv = CausalConv(context, shape, layer=layer)
        self.gates = DeltaGates(context, shape)
        self.rule = DeltaRule(context, layer=layer)
        self.norm = GatedRMSNorm(context, shape.value_dim, eps=eps)
        self.output = Linear(
            context, values, (hidden_size,), spread=row_parallel(group), units={"I": units}
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
        shape = self.shape
        qkv_TC, z, b_TN, a_TN = self.inputs(x_TD).split_with_sizes(self.widths, -1)
        q, k, v = self.conv(qkv_TC, step).split_with_sizes(shape.widths, -1)
        keys = (-1, shape.key_heads, shape.key_dim)
        values = (-1, shape.value_heads, shape.value_dim)
        tokens = (q.view(keys), k.view(keys), v.view(values), *self.gates(a_TN, b_TN))
        mixed_TNV = self.rule(*tokens, step)
        return self.output(self.norm(mixed_TNV, z.view(values)).flatten(-2))
