"""What decoders share: embedding, layers around an attention, final norm and head.

A model file adds its config, its attention and, where they differ, its MLP and its layer.
Legend: T tokens, D hidden, R rows, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar

from tokenspeed.contracts.model import CacheGroup, gqa_fields
from tokenspeed.contracts.placement import ParallelGroup
from tokenspeed.layers.embedding import TokenEmbedding
from tokenspeed.layers.linear import Linear
from tokenspeed.layers.mlp import GatedMLP
from tokenspeed.layers.norm import RMSNorm
from tokenspeed.layers.placements import column_parallel
from tokenspeed.layers.rotary import RotaryEmbedding
from tokenspeed.layers.weights import fill_slots, shared_slot
from tokenspeed.placement.vocabulary import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import torch

    from tokenspeed.contracts.model import ForwardContext, ModelContext
    from tokenspeed.contracts.moe import ExpertGroup
    from tokenspeed.contracts.placement import Shards
    from tokenspeed.contracts.weights import LinearWeight
    from tokenspeed.layers.rotary import Angles, RopeParameters
    from tokenspeed.layers.weights import WeightSlot

CACHE_GROUP = "full"


class DecoderConfig(Protocol):
    """The fields that the shared body reads; a model's own config has more."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def norm_eps(self) -> float: ...
    @property
    def tie_embeddings(self) -> bool: ...
    @property
    def rope(self) -> RopeParameters: ...

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Self:
        """Read and check config.json."""
        ...


class Attention(Protocol):
    """Mixes tokens: (T, D) to (T, D)."""

    def weight_slots(self, name: str) -> Iterator[tuple[str, WeightSlot]]: ...
    def __call__(
        self, x_TD: torch.Tensor, step: ForwardContext, angles: Angles
    ) -> torch.Tensor: ...


class FeedForward(Protocol):
    """Works on each token alone: (T, D) to (T, D)."""

    def weight_slots(self, name: str) -> Iterator[tuple[str, WeightSlot]]: ...
    def __call__(self, x_TD: torch.Tensor) -> torch.Tensor: ...


class Layer(Protocol):
    """One layer; the next one's first norm, or the final one, adds what it returns.

    Called with `residual_TD` None in the first layer, where `x_TD` is the embedding.
    """

    def weight_slots(self, name: str) -> Iterator[tuple[str, WeightSlot]]: ...
    def __call__(
        self,
        x_TD: torch.Tensor,
        residual_TD: torch.Tensor | None,
        step: ForwardContext,
        angles: Angles,
    ) -> tuple[torch.Tensor, torch.Tensor]: ...


Config = TypeVar("Config", bound=DecoderConfig)


class DecoderLayer:
    """Attention and MLP, each normalised before and added to the residual stream after.

    Args:
        attention_name, mlp_name: of their modules in the checkpoint.
    """

    def __init__(
        self,
        make_norm: Callable[[], RMSNorm],
        attention: Attention,
        mlp: FeedForward,
        *,
        attention_name: str,
        mlp_name: str,
    ) -> None:
        self.attention_norm = make_norm()
        self.attention_name = attention_name
        self.attention = attention
        self.mlp_norm = make_norm()
        self.mlp_name = mlp_name
        self.mlp = mlp

    def weight_slots(self, name: str) -> Iterator[tuple[str, WeightSlot]]:
        """Yield the slots below module `name`."""
        yield from self.attention_norm.weight_slots(f"{name}.input_layernorm")
        yield from self.attention.weight_slots(f"{name}.{self.attention_name}")
        yield from self.mlp_norm.weight_slots(f"{name}.post_attention_layernorm")
        yield from self.mlp.weight_slots(f"{name}.{self.mlp_name}")

    def __call__(
        self,
        x_TD: torch.Tensor,
        residual_TD: torch.Tensor | None,
        step: ForwardContext,
        angles: Angles,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (what is still to be added to the residual stream, the residual stream)."""
        if residual_TD is None:
            normed_TD, residual_TD = self.attention_norm(x_TD), x_TD
        else:
            normed_TD, residual_TD = self.attention_norm.add(x_TD, residual_TD)
        x_TD = self.attention(normed_TD, step, angles)
        normed_TD, residual_TD = self.mlp_norm.add(x_TD, residual_TD)
        return self.mlp(normed_TD), residual_TD


class DecoderForCausalLM(ABC, Generic[Config]):
    """Base of an architecture's EntryClass; satisfies contracts.model.CausalLM.

    A subclass names `architectures` and `config_class` and makes its attention. One with several
    kinds of layers overrides `cache_groups`, and `attention_name` where their names differ; one
    whose norms stand elsewhere overrides `make_layer`; one that scales embeddings, `embed`; one
    that caps its logits, `compute_logits`.
    """

    architectures: ClassVar[tuple[str, ...]]
    config_class: type[Config]
    centred_norms: ClassVar[bool] = False
    """Norm weights are stored less one."""
    mlp_name: ClassVar[str] = "mlp"
    """Name of a layer's MLP module in the checkpoint."""
    ignored_prefixes: tuple[str, ...] = ()
    """Beginnings of tensor names that are no part of the decoder, such as heads for drafts."""
    held_bytes: int = 0
    """Of the weights that were loaded, this rank's part alone."""

    def __init__(self, config: Mapping[str, Any], context: ModelContext) -> None:
        self.config = self.config_class.read(config)
        self.context = context
        self.rotary = RotaryEmbedding(context, self.config.rope, self.config.head_dim)
        hidden_size, vocab_size = self.config.hidden_size, self.config.vocab_size
        self.embedding = TokenEmbedding(context, vocab_size, hidden_size)
        self.layers = [self.make_layer(layer) for layer in range(self.config.num_layers)]
        self.norm = self.make_norm()
        spread = column_parallel(ParallelGroup.VOCAB_TP)
        rows = rows_of(vocab_size, context.shards)
        self.head = Linear(context, hidden_size, (rows,), spread=spread)

    def make_layer(self, layer: int) -> Layer:
        """Build one layer: attention and MLP, each normalised before."""
        return DecoderLayer(
            self.make_norm,
            self.make_attention(layer),
            self.make_mlp(layer),
            attention_name=self.attention_name(layer),
            mlp_name=self.mlp_name,
        )

    @abstractmethod
    def make_attention(self, layer: int) -> Attention:
        """Build the attention of one layer."""

    def make_mlp(self, layer: int) -> FeedForward:
        """Build the MLP of one layer."""
        return GatedMLP(self.context, self.config.hidden_size, self.config.intermediate_size)

    def make_norm(self) -> RMSNorm:
        """Build a norm of the residual stream."""
        config = self.config
        return RMSNorm(
            self.context, config.hidden_size, eps=config.norm_eps, centred=self.centred_norms
        )

    def attention_name(self, layer: int) -> str:
        """Return the name of a layer's attention module in the checkpoint."""
        return "self_attn"

    @classmethod
    def cache_groups(cls, config: Mapping[str, Any]) -> tuple[CacheGroup, ...]:
        """Declare one full group over all layers."""
        read = cls.config_class.read(config)
        layers = tuple(range(read.num_layers))
        fields = gqa_fields(read.num_kv_heads, read.head_dim)
        return (CacheGroup(CACHE_GROUP, "full", layers, fields),)

    @classmethod
    def expert_groups(cls, config: Mapping[str, Any]) -> tuple[ExpertGroup, ...]:
        """Declare the routed experts: none."""
        return ()

    def weight_slots(self) -> Iterator[tuple[str, WeightSlot]]:
        """Yield the slots of everything but the head, by Hugging Face name."""
        yield from self.embedding.weight_slots("model.embed_tokens")
        for index, layer in enumerate(self.layers):
            yield from layer.weight_slots(f"model.layers.{index}")
        yield from self.norm.weight_slots("model.norm")

    def weight_map(self) -> dict[str, WeightSlot]:
        """Return every slot by Hugging Face name; a tied head shares the embedding's."""
        shards = self.context.shards
        slots = dict(self.weight_slots())
        head = self._head_slot()
        if shards is not None:
            slots = {name: _of_stage(name, slot, shards) for name, slot in slots.items()}
            head = _of_stage("lm_head.weight", head, shards)
        if self.config.tie_embeddings:
            embedding = "model.embed_tokens.weight"
            slots[embedding] = shared_slot(slots[embedding], head)
        else:
            slots["lm_head.weight"] = head
        return slots

    def _head_slot(self) -> WeightSlot:
        """Return the slot of the head: the checkpoint has the vocabulary's rows alone."""
        slot = dict(self.head.weight_slots("lm_head"))["lm_head.weight"]
        rows, hidden_size = slot.shape
        return replace(slot, shape=(self.config.vocab_size, hidden_size), padded={"O": rows})

    def load_weights(self, weights: Iterable[tuple[str, LinearWeight]]) -> None:
        """Take every checkpoint tensor by its Hugging Face name."""
        tied = ("lm_head.weight",) if self.config.tie_embeddings else ()
        ignored = ("rotary_emb.inv_freq", *tied)
        self.held_bytes = fill_slots(
            self.weight_map(),
            weights,
            ignored=ignored,
            ignored_prefixes=self.ignored_prefixes,
            shards=self.context.shards,
        )

    def wanted_weights(self) -> dict[str, tuple[int, ...]]:
        """Return name and shape of every tensor that `load_weights` takes."""
        return {name: slot.shape for name, slot in self.weight_map().items() if slot.is_held}

    def skipped_weights(self) -> frozenset[str]:
        """Return the names of tensors that other ranks hold and this one does not."""
        if self.context.shards is None:
            return frozenset()
        return frozenset(name for name, slot in self.weight_map().items() if not slot.is_held)

    def forward(self, token_ids_T: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """Return hidden states (T, D) after the final norm."""
        angles = self.rotary.angles(context.positions_T)
        x_TD, residual_TD = self.layers[0](self.embed(token_ids_T), None, context, angles)
        for layer in self.layers[1:]:
            x_TD, residual_TD = layer(x_TD, residual_TD, context, angles)
        return self.norm.add(x_TD, residual_TD)[0]

    def embed(self, token_ids_T: torch.Tensor) -> torch.Tensor:
        """Return what the first layer takes, (T, D)."""
        return self.embedding(token_ids_T)

    def compute_logits(self, hidden_RD: torch.Tensor) -> torch.Tensor:
        """Return logits (R, V) float32."""
        return self.head(hidden_RD).float()


def _of_stage(name: str, slot: WeightSlot, shards: Shards) -> WeightSlot:
    """Return the slot, not held where another pipeline stage has its layer."""
    place = name.removeprefix("model.").split(".")
    if place[0] == "layers":
        is_held = shards.holds_layer(int(place[1]))
    else:
        is_held = shards.is_first_stage if place[0] == "embed_tokens" else shards.is_last_stage
    return slot if is_held else replace(slot, is_held=False)
