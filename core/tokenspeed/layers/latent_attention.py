"""Multi-head latent attention (MLA): all heads read one cached latent a token.

    latent = [norm(c), rotated k]          cached: C + R elements a token, whatever the heads
    score  = q . k_head = [W_k^T q, rotated q] . latent
    value  = W_v c

The up-projections of keys and values are never applied to the cache: that of keys is absorbed into
the query, that of values comes after the sum. To a backend it is attention with one kv head, whose
values are the first C elements of its keys.
Legend: T tokens, D hidden, N heads, P plain dims of a head, R rotated dims, C latent, V value dim.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tokenspeed.contracts.placement import ParallelGroup
from tokenspeed.contracts.weights import LinearWeight
from tokenspeed.layers.attention import PagedAttention
from tokenspeed.layers.linear import HeadsLinear, Linear
from tokenspeed.layers.norm import RMSNorm
from tokenspeed.layers.placements import column_parallel, row_parallel
from tokenspeed.layers.weights import WeightSlot, plain_tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from tokenspeed.contracts.model import ForwardContext, ModelContext
    from tokenspeed.layers.rotary import Angles, RotaryEmbedding


@dataclass(frozen=True, slots=True)
class LatentShape:
    """Sizes of one layer.

    Args:
        hidden_size, num_heads: D, N.
        query_rank: of the queries' own latent; 0: queries are projected at once.
        latent_dim: C.
        plain_dim, rotary_dim, value_dim: P, R, V of a head.
        is_woven: the dims that rotate together stand side by side in the checkpoint.
        bias: of the projections into latents and of the output.
        norm_eps: of the latents' norms.
        scale: multiplies q k.
    """

    hidden_size: int
    num_heads: int
    query_rank: int
    latent_dim: int
    plain_dim: int
    rotary_dim: int
    value_dim: int
    is_woven: bool
    bias: bool
    norm_eps: float
    scale: float

    @property
    def query_dim(self) -> int:
        """Elements of a query head as it is projected: P + R."""
        return self.plain_dim + self.rotary_dim

    @property
    def cached_dim(self) -> int:
        """Elements that are cached a token: C + R."""
        return self.latent_dim + self.rotary_dim


class LatentAttention:
    """Projects into latents, rotates, attends, projects back; heads are spread over ranks."""

    def __init__(
        self,
        context: ModelContext,
        shape: LatentShape,
        rotary: RotaryEmbedding,
        *,
        layer: int,
        group: str,
    ) -> None:
        self.shape = shape
        self.rotary = rotary
        heads, spread_over = shape.num_heads, ParallelGroup.ATTN_TP
        latents = (shape.query_rank, shape.cached_dim) if shape.query_rank else (shape.cached_dim,)
        self.down = Linear(context, shape.hidden_size, latents, bias=shape.bias)
        self.query_norm: RMSNorm | None = None
        if shape.query_rank:
            self.query_norm = RMSNorm(context, shape.query_rank, eps=shape.norm_eps)
        self.query = Linear(
            context,
            shape.query_rank or shape.hidden_size,
            ((heads * shape.plain_dim, heads * shape.rotary_dim),),
            spread=column_parallel(spread_over),
            units={"O": (heads, heads)},
        )
        self.latent_norm = RMSNorm(context, shape.latent_dim, eps=shape.norm_eps)
        dims = shape.plain_dim, shape.latent_dim, shape.value_dim
        self.key_up = HeadsLinear(context, heads, *dims[:2], spread_over)
        self.attend = PagedAttention(
            context, layer=layer, group=group, head_dim=shape.cached_dim, scale=shape.scale
        )
        self.value_up = HeadsLinear(context, heads, *dims[1:], spread_over)
        self.output = Linear(
            context,
            heads * shape.value_dim,
            (shape.hidden_size,),
            bias=shape.bias,
            spread=row_parallel(spread_over),
            units={"I": (heads,)},
        )

    def weight_slots(self, name: str) -> Iterator[tuple[str, WeightSlot]]:
        """Yield the slots below module `name`."""
        shape = self.shape
        kv_down = f"{name}.kv_a_proj_with_mqa"
        if self.query_norm is not None:
            downs: tuple[str, ...] = (f"{name}.q_a_proj", kv_down)
            yield from self.query_norm.weight_slots(f"{name}.q_a_layernorm")
            queries = self.query.weight_slots(f"{name}.q_b_proj")
        else:
            downs = (kv_down,)
            queries = self.query.weight_slots(f"{name}.q_proj")
        for slot_name, slot in self.down.weight_slots(*downs):
            if slot_name.startswith(kv_down):
                slot = self._turned_last(slot, shape.cached_dim, shape.latent_dim)
            yield slot_name, slot
        heads = shape.num_heads
        for slot_name, slot in queries:
            whole_heads = replace(slot, parts={"O": slot.shape[:1]}, units={"O": (heads,)})
            yield slot_name, self._turned_last(whole_heads, shape.query_dim, shape.plain_dim)
        yield from self.latent_norm.weight_slots(f"{name}.kv_a_layernorm")
        up = WeightSlot(
            (heads * (shape.plain_dim + shape.value_dim), shape.latent_dim),
            self._accept_up,
            "N _",
            self.key_up.spread,
            units={"N": (heads,)},
        )
        yield f"{name}.kv_b_proj.weight", up
        yield from self.output.weight_slots(f"{name}.o_proj")

    def __call__(self, x_TD: torch.Tensor, step: ForwardContext, angles: Angles) -> torch.Tensor:
        """Return (T, D)."""
        import torch

        shape = self.shape
        down = self.down(x_TD)
        if self.query_norm is not None:
            query, down = down.split_with_sizes((shape.query_rank, shape.cached_dim), -1)
            query = self.query_norm(query)
        else:
            query = x_TD
        heads = shape.num_heads
        plain, turned = self.query(query).split_with_sizes(
            (heads * shape.plain_dim, heads * shape.rotary_dim), -1
        )
        plain_TNP = plain.view(-1, heads, shape.plain_dim)
        turned_TNR = self.rotary(turned.view(-1, heads, shape.rotary_dim), angles)
        latent_TC, key_TR = down.split_with_sizes((shape.latent_dim, shape.rotary_dim), -1)
        latent_T1C = self.latent_norm(latent_TC)[:, None]
        k_T1L = torch.cat((latent_T1C, self.rotary(key_TR[:, None], angles)), -1)
        q_TNL = torch.cat((self.key_up(plain_TNP), turned_TNR), -1)
        sums_TNC = self.attend(q_TNL, k_T1L, latent_T1C, step)
        return self.output(self.value_up(sums_TNC).flatten(-2))

    def _turned_last(self, slot: WeightSlot, num_rows: int, num_plain: int) -> WeightSlot:
        """Return a slot that puts the rotated rows of all heads, in halves, behind all others.

        Args:
            num_rows: of a head.
            num_plain: rows of a head before its rotated ones.
        """
        import torch

        def accept(weight: LinearWeight) -> None:
            stored = plain_tensor(weight, "a projection of latent attention")
            rows = stored.view(-1, num_rows, *stored.shape[1:])
            plain, turned = rows.split_with_sizes((num_plain, self.shape.rotary_dim), 1)
            if self.shape.is_woven:
                turned = torch.cat((turned[:, ::2], turned[:, 1::2]), 1)
            ordered = torch.cat((plain.flatten(0, 1), turned.flatten(0, 1)))
            slot.accept(LinearWeight(weight.shape, ordered))

        return replace(slot, accept=accept)

    def _accept_up(self, weight: LinearWeight) -> None:
        shape = self.shape
        up = plain_tensor(weight, "a projection of latent attention")
        dims = (shape.plain_dim, shape.value_dim)
        up_NxC = up.view(-1, sum(dims), shape.latent_dim)
        keys_NPC, values_NVC = up_NxC.split_with_sizes(dims, 1)
        self.key_up.take(keys_NPC.mT)
        self.value_up.take(values_NVC)
