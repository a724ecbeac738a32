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

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenspeed.contracts.placement import ParallelGroup
from tokenspeed.contracts.weights import LinearWeight
from tokenspeed.layers.attention import PagedAttention
from tokenspeed.layers.linear import Linear
from tokenspeed.layers.norm import RMSNorm
from tokenspeed.layers.placements import column_parallel, replicated, row_parallel
from tokenspeed.layers.weights import WeightSlot, plain_tensor
from tokenspeed.ops import linear

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
        columns = column_parallel(ParallelGroup.ATTN_TP)
        latents = (shape.query_rank, shape.cached_dim) if shape.query_rank else (shape.cached_dim,)
        self.down = Linear(
            context, shape.hidden_size, latents, bias=shape.bias, placement=replicated()
        )
        self.query_norm: RMSNorm | None = None
        if shape.query_rank:
            self.query_norm = RMSNorm(context, shape.query_rank, eps=shape.norm_eps)
        self.query = Linear(
            context,
            shape.query_rank or shape.hidden_size,
            (shape.num_heads * shape.query_dim,),
            placement=columns,
        )
        self.latent_norm = RMSNorm(context, shape.latent_dim, eps=shape.norm_eps)
        self.attend = PagedAttention(
            context, layer=layer, group=group, head_dim=shape.cached_dim, scale=shape.scale
        )
        self.output = Linear(
            context,
            shape.num_heads * shape.value_dim,
            (shape.hidden_size,),
            bias=shape.bias,
            placement=row_parallel(ParallelGroup.ATTN_TP),
        )
        self._device = context.device
        self._multiply: Callable[..., torch.Tensor] = context.kernels.bind(linear.heads_linear)
        self._keys_NCP: torch.Tensor
        self._values_NVC: torch.Tensor

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
            is_cached = slot_name.startswith(kv_down)
            yield slot_name, self._turned_last(slot, 1, shape.latent_dim) if is_cached else slot
        for slot_name, slot in queries:
            yield slot_name, self._turned_last(slot, shape.num_heads, shape.plain_dim)
        yield from self.latent_norm.weight_slots(f"{name}.kv_a_layernorm")
        rows = shape.num_heads * (shape.plain_dim + shape.value_dim)
        yield f"{name}.kv_b_proj.weight", WeightSlot((rows, shape.latent_dim), self._accept_up)
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
        q_TNL = torch.cat((self._multiply(plain_TNP, self._keys_NCP), turned_TNR), -1)
        sums_TNC = self.attend(q_TNL, k_T1L, latent_T1C, step)
        return self.output(self._multiply(sums_TNC, self._values_NVC).flatten(-2))

    def _turned_last(self, slot: WeightSlot, num_heads: int, num_plain: int) -> WeightSlot:
        """Return a slot that puts the rotated rows of all heads, in halves, behind all others.

        Args:
            num_plain: rows of a head before its rotated ones.
        """
        import torch

        def accept(weight: LinearWeight) -> None:
            stored = plain_tensor(weight, "a projection of latent attention")
            rows = stored.view(num_heads, -1, *stored.shape[1:])
            plain, turned = rows.split_with_sizes((num_plain, self.shape.rotary_dim), 1)
            if self.shape.is_woven:
                turned = torch.cat((turned[:, ::2], turned[:, 1::2]), 1)
            ordered = torch.cat((plain.flatten(0, 1), turned.flatten(0, 1)))
            slot.accept(LinearWeight(weight.shape, ordered))

        return WeightSlot(slot.shape, accept)

    def _accept_up(self, weight: LinearWeight) -> None:
        shape = self.shape
        up = (
            plain_tensor(weight, "a projection of latent attention")
            .to(self._device)
            .view(shape.num_heads, -1, shape.latent_dim)
        )
        keys_NPC, values_NVC = up.split_with_sizes((shape.plain_dim, shape.value_dim), 1)
        self._keys_NCP = keys_NPC.mT.contiguous()
        self._values_NVC = values_NVC.contiguous()
