"""Every implementation as a callable of its operator's signature, whatever slot it comes from.

Kernels are that already. Backends of the attention slot, samplers and communicators are objects
with calls of their own: here they are built for each case and asked for what the operator says.
`outcomes` is what conformance runs on every offer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.contracts.moe import ExpertGroup, ExpertWeights, Routing
from tokenspeed.contracts.sampler import scores_of
from tokenspeed.ops.collective_calls import CALLS, calls_of
from tokenspeed.ops.compare import Outcome, cases_within, compare
from tokenspeed.ops.compare_draws import compare_draws
from tokenspeed.ops.ranks import on_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import torch

    from tokenspeed.contracts.attention import AttentionBackend, AttentionBatch, KVView
    from tokenspeed.contracts.communicator import Communicator
    from tokenspeed.contracts.kernel import Domain, KernelOffer, Operator
    from tokenspeed.contracts.moe import ClampedSwiGLU, MoEBackend
    from tokenspeed.contracts.registration import Offer

    Implementation = Callable[..., Any]
    Load = Callable[..., Any]


def outcomes(
    operator: Operator,
    offer: Offer | KernelOffer,
    domain: Domain,
    *,
    device: torch.device | str = "cpu",
) -> Iterator[Outcome]:
    """Compare an offer with an operator's definition in every case of the domain that it takes.

    Args:
        offer: a kernel of the operator, or an offer for the operator's slot.
        domain: the dtype to compare in; its traits are usually the offer's `requires`.
        device: torch device that the offer computes on.
    """
    for case in cases_within(operator, domain):
        if operator.name == "sampling.distribution":
            vocab_size = case.args[0].shape[1]
            load: Load = offer.load
            sampler = load(device=_device(device), vocab_size=vocab_size)
            yield compare_draws(operator, sampler, case, device=device)
        else:
            function = implementation(operator, offer)
            yield compare(operator, function, case, dtype=domain.dtype, device=device)


def implementation(operator: Operator, offer: Offer | KernelOffer) -> Implementation:
    """Return a callable of the operator's signature.

    Raises:
        ValueError: the operator belongs to a slot whose backends this version cannot ask for it.
    """
    if operator.slot == "operator":
        kernel: Implementation = offer.load()
        return kernel
    adapt = ADAPTERS.get(operator.name)
    if adapt is None:
        raise ValueError(
            f"operator {operator.name} of slot {operator.slot} has no adapter; known are "
            f"{', '.join(ADAPTERS)}; compare kernels and these"
        )
    return adapt(offer.load)


def _paged_attention(load: Load) -> Implementation:
    def attend(
        q_TNH: torch.Tensor, kv: KVView, batch: AttentionBatch, **options: Any
    ) -> torch.Tensor:
        backend = _backend(load, q_TNH, kv, batch)
        return backend.attend(q_TNH, kv, backend.plan(batch), **options)

    return attend


def _write_kv(load: Load) -> Implementation:
    def write(k_TKH: torch.Tensor, v_TKH: torch.Tensor, kv: KVView, batch: AttentionBatch) -> None:
        backend = _backend(load, k_TKH, kv, batch)
        backend.write(k_TKH, v_TKH, kv, backend.plan(batch))

    return write


def _backend(load: Load, x: torch.Tensor, kv: KVView, batch: AttentionBatch) -> AttentionBackend:
    head_dim, v_head_dim = kv.k.shape[-1], kv.v.shape[-1]
    backend: AttentionBackend = load(
        num_heads=x.shape[1],
        num_kv_heads=kv.k.shape[1],
        head_dim=head_dim,
        **({"v_head_dim": v_head_dim} if v_head_dim != head_dim else {}),
        block_tokens=batch.block_tokens,
        dtype=x.dtype,
        device=x.device,
    )
    return backend


def _experts(load: Load) -> Implementation:
    def compute(
        x_TD: torch.Tensor,
        experts_TX: torch.Tensor,
        weights_TX: torch.Tensor,
        *stacked: torch.Tensor,
        clamped: ClampedSwiGLU | None = None,
    ) -> torch.Tensor:
        weights = ExpertWeights(*stacked)
        num_experts, hidden_size, features = weights.down_EDF.shape
        group = ExpertGroup(
            name="experts",
            layers=(0,),
            num_experts=num_experts,
            hidden_size=hidden_size,
            features=features,
            routing=Routing(experts_TX.shape[1]),
            clamped=clamped,
            bias=weights.down_bias_ED is not None,
        )
        backend: MoEBackend = load(group=group, dtype=x_TD.dtype, device=x_TD.device)
        return backend.forward(x_TD, experts_TX, weights_TX, backend.prepare(weights))

    return compute


def _token_logprobs(load: Load) -> Implementation:
    def score(
        logits_RV: torch.Tensor, token_ids_R: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        sampler = load(device=logits_RV.device, vocab_size=logits_RV.shape[1])
        given = sampler.logprobs_of(logits_RV, token_ids_R, 0)
        token_ids_R.tolist()  # waits: scores that were put off are asked for when they have arrived
        entries = [entry for entry in scores_of(given) if entry is not None]
        scores = torch.tensor([entry.logprob for entry in entries], dtype=torch.float32)
        return scores, torch.tensor([entry.rank for entry in entries], dtype=torch.int64)

    return score


def _collective(operator: str) -> Callable[[Load], Implementation]:
    def adapt(load: Load) -> Implementation:
        def compute(*args: Any, **options: Any) -> list[torch.Tensor]:
            calls = calls_of(operator, *args, **options)
            return on_ranks(load, calls, lambda ranks, call: _called(ranks, *call))

        return compute

    return adapt


def _called(
    ranks: Communicator, method: str, args: tuple[Any, ...], options: Mapping[str, Any]
) -> torch.Tensor:
    result: torch.Tensor = getattr(ranks, method)(*args, **options)
    return result


ADAPTERS: Mapping[str, Callable[[Load], Implementation]] = {
    "attention.paged": _paged_attention,
    "kv.write": _write_kv,
    "moe.experts": _experts,
    "sampling.logprobs": _token_logprobs,
    **{operator: _collective(operator) for operator in CALLS},
}
"""Operator name -> what makes a backend's `load` a callable of its signature."""


def _device(device: torch.device | str) -> torch.device:
    import torch

    return torch.device(device)
