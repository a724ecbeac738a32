"""Model slot: what an architecture file offers and what it is built with.

A model file ends in `EntryClass`, a class that satisfies `CausalLM`. Inputs are packed:
(total_tokens, hidden), no padding. Legend: T tokens, D hidden, R rows, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import torch

    from tokenspeed.contracts.attention import AttentionBackend, KVView, StateView
    from tokenspeed.contracts.kernel import KernelBinder
    from tokenspeed.contracts.moe import ExpertGroup, MoEBackend
    from tokenspeed.contracts.placement import Recorder, Shards
    from tokenspeed.contracts.weights import LinearWeight


LATENT = "latent"


@dataclass(frozen=True, slots=True)
class CacheField:
    """One tensor that a layer keeps: per token, or per sequence in a state group.

    In a block it lies as [shape[:-1]][token][shape[-1]], for a state as [shape].

    Args:
        name: unique in the group, such as "k", "latent" or "conv".
        shape: elements of one layer; of all ranks together where a model declares it.
        dtype: torch's name of the element type, such as "float32"; None: the engine's KV dtype.
        units: equal parts into which the first dimension may be cut over ranks, such as kv heads;
            one that several ranks need is held by each.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str | None = None
    units: int = 1


def gqa_fields(num_kv_heads: int, head_dim: int) -> tuple[CacheField, ...]:
    """Return the usual pair: keys and values of (num_kv_heads, head_dim) a token."""
    shape = (num_kv_heads, head_dim)
    units = num_kv_heads
    return CacheField("k", shape, units=units), CacheField("v", shape, units=units)


def latent_fields(latent_dim: int) -> tuple[CacheField, ...]:
    """Return what latent attention keeps: one row a token, key of all heads and value in one."""
    return (CacheField(LATENT, (1, latent_dim)),)


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """What a set of layers keeps; all the core knows of attention.

    A layer is in exactly one group, and a model has at least one full group (one that has windows
    only declares its first as full: same answers, more memory).

    Args:
        name: unique in the model, such as "full".
        kind: "full": every token's fields; "window": those of the last `window` tokens; "state":
            one row of fields for the whole sequence, written anew by every step.
        layers: indices of the layers that share the group's block tables, or row.
        fields: what one layer keeps.
        window: tokens that a token sees, itself included; 0 unless the kind is "window".
        value_dim: of a group that keeps a latent (`latent_fields`): its first so many elements are
            the value; 0: the group keeps none.
        sinks, softcap: what the attention of some of its layers does beside the usual; see
            AttentionBackend.attend. Backends that cannot are not chosen.
        share_tokens: grain in tokens at which written bytes are final (1: every token).
        speculation: state groups only, how wrong drafts are taken back; the model's layers pass
            their operators through `ops.state.in_stages`. "rows_per_position": a step with drafts
            writes a row a position; "replay": the row before the drafts stays and accepted tokens
            are read again; "none": not at all, the model is served without a speculator.
    """

    name: str
    kind: str
    layers: tuple[int, ...]
    fields: tuple[CacheField, ...]
    window: int = 0
    share_tokens: int = 1
    speculation: str = "none"
    sinks: bool = False
    softcap: float = 0.0
    value_dim: int = 0


@dataclass(frozen=True, slots=True)
class StateRows:
    """Where each row of a step reads and writes the state of one layer's group.

    Args:
        read_R: (R,) int64 device; block id of the state before the row's first query token, -1:
            zeros (a fresh sequence).
        write_R: (R,) int64 device; block id that takes the state after its last query token; never
            a block that another row reads. It may be read_R of its own row: read first.
        stages: not empty in a step with drafts, whose rows are cut into pieces; kernels see the
            pieces of one stage as their rows (`ops.state.in_stages`).
    """

    read_R: torch.Tensor
    write_R: torch.Tensor
    stages: tuple[StateStage, ...] = ()


@dataclass(frozen=True, slots=True)
class StateStage:
    """Pieces of rows that read no state written by one another, only that of earlier stages.

    Args:
        tokens_P: (P,) int64 device; places of the pieces' query tokens in the step.
        query_start: (pieces + 1,) int32 host; piece i has tokens_P[query_start[i]:query_start[i+1]]
        rows: what each piece reads and writes.
    """

    tokens_P: torch.Tensor
    query_start: Any
    rows: StateRows


@dataclass(frozen=True, slots=True)
class ModelContext:
    """What a model is built with; everything in it was chosen once, before this.

    Args:
        kernels: binds operators to kernels, `kernels.bind(ops.norm.rms_norm, head_dim=...)`.
        attention: cache group name -> backend chosen for it.
        dtype, device: of weights and activations.
        max_context_tokens: longest sequence the rotary tables must cover.
        moe: expert group name -> backend chosen for it.
        shards: what this rank holds, where there are several; None: everything.
        recorder: the model is built to be traced: layers have it note their calls.
    """

    kernels: KernelBinder
    attention: Mapping[str, AttentionBackend]
    dtype: torch.dtype
    device: torch.device
    max_context_tokens: int
    moe: Mapping[str, MoEBackend] = field(default_factory=dict)
    shards: Shards | None = None
    recorder: Recorder | None = None


@dataclass(slots=True)
class ForwardContext:
    """One step's inputs beside the token ids; passed down as an argument, never global.

    Args:
        positions_T: (T,) int64 device.
        kv: layer index -> its view of the arena; StateView for layers of a state group; None for
            those of another pipeline stage.
        attention_metadata: cache group name -> what its backend's `plan` returned.
        output_index_R: (R,) int32 host; -1 for rows that sample nothing (see StepPlan).
        num_drafts_R: (R,) int32 host; how many of a row's query tokens, its last ones, are drafts.
        query_start: (R + 1,) int32 host.
        state_rows: layer index -> rows of its state group; layers of k/v groups are absent. By
            layer, as `kv`: the layout may split a group's layers over several rows.
        query_metadata: the same for the query tokens that this rank attends for, where ranks share
            those of a step (context parallelism); empty: as attention_metadata.
        partition_tokens: tokens of every attention-DP partition in this step, T among them; empty:
            there is one partition.
    """

    positions_T: torch.Tensor
    kv: Sequence[KVView | StateView | None]
    attention_metadata: Mapping[str, object]
    output_index_R: Any
    num_drafts_R: Any
    query_start: Any
    state_rows: Mapping[int, StateRows] = field(default_factory=dict)
    query_metadata: Mapping[str, object] = field(default_factory=dict)
    partition_tokens: Sequence[int] = ()


class CausalLM(Protocol):
    """A decoder that predicts the next token.

    Optional: `expert_groups`, for models with experts (see `MixtureOfExperts`); `wanted_weights()`,
    name -> shape of every tensor that `load_weights` takes, for weights made up. Of models that
    several ranks may share: `skipped_weights()`, the names of tensors that other ranks hold, which
    are not read; `held_bytes`, of the weights that this one has loaded; `own_queries`, see
    StepBatcher; or
    `is_replicated = True` of one without layers that could be spread: every rank has all of it.
    """

    architectures: ClassVar[tuple[str, ...]]
    """Values of `architectures[0]` in config.json that this class serves."""

    def __init__(self, config: Mapping[str, Any], context: ModelContext) -> None:
        """Build with empty weights.

        Raises:
            ConfigError: a field is missing or unsupported; names field and value.
        """
        ...

    @classmethod
    def cache_groups(cls, config: Mapping[str, Any]) -> tuple[CacheGroup, ...]:
        """Declare the cache from config.json alone: no weights, no torch."""
        ...

    def load_weights(self, weights: Iterable[tuple[str, LinearWeight]]) -> None:
        """Take every checkpoint tensor by its Hugging Face name.

        Raises:
            CheckpointError: an unknown, missing or wrongly shaped tensor, by name.
        """
        ...

    def forward(self, token_ids_T: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """Return hidden states (T, D) after the final norm."""
        ...

    def compute_logits(self, hidden_RD: torch.Tensor) -> torch.Tensor:
        """Return logits (R, V) float32 for selected positions."""
        ...


class MixtureOfExperts(CausalLM, Protocol):
    """A decoder some of whose layers have routed experts."""

    @classmethod
    def expert_groups(cls, config: Mapping[str, Any]) -> tuple[ExpertGroup, ...]:
        """Declare the experts from config.json alone: no weights, no torch."""
        ...


def expert_groups_of(
    model_class: type[CausalLM], config: Mapping[str, Any]
) -> tuple[ExpertGroup, ...]:
    """Return the expert groups that a model declares; none where it has no `expert_groups`."""
    declare = getattr(model_class, "expert_groups", None)
    return () if declare is None else tuple(declare(config))
