"""Mixture of experts: choosing experts, computing them, adding the shared one.

Legend: T tokens, E experts, X experts chosen a token, D hidden, F hidden features of an expert.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from tokenspeed.contracts.kernel import Case
from tokenspeed.contracts.moe import ClampedSwiGLU, ExpertGroup, Routing
from tokenspeed.ops.declare import EXACT, FLOAT_TOLERANCE, operator
from tokenspeed.ops.draw import Draw

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import torch

    from tokenspeed.contracts.kernel import Domain

__all__ = ["ClampedSwiGLU", "Routing", "add_shared", "count", "experts", "route", "slots"]


EXPERTS_TOLERANCE = {**FLOAT_TOLERANCE, "bfloat16": (4e-2, 4e-2), "float16": (6e-3, 6e-3)}
"""Twice the usual: what stands between the two products may be rounded."""

_ROUTINGS: Mapping[str, Routing] = {
    "softmax": Routing(2),
    "softmax, shares of all": Routing(3, normalise=False),
    "sigmoid": Routing(4, "sigmoid"),
    "softmax in groups": Routing(2, groups=4, top_groups=2, normalise=False, scale=16.0),
    "sigmoid in groups": Routing(4, "sigmoid", groups=4, top_groups=2, group_best=2, scale=2.5),
    "every expert": Routing(16),
}


def _route_cases(domain: Domain) -> Iterator[Case]:
    import torch

    draw = Draw(domain)
    for name, routing in _ROUTINGS.items():
        options = {"routing": routing}
        for tokens in (0, 1, 9):
            logits = draw.floats(tokens, 16, scale=2)
            yield Case(f"{name}, {tokens} tokens", (logits,), options)
        yield Case(f"{name}, bias", (draw.floats(9, 16), draw.floats(16)), options)
    tied = torch.ones(3, 16, dtype=draw.dtype)
    yield Case("all experts tie", (tied,), {"routing": _ROUTINGS["sigmoid in groups"]})


def _expert_cases(domain: Domain) -> Iterator[Case]:
    draw = Draw(domain)
    gates, biases = (
        domain.values("expert_gate", "silu", "clamped_swiglu"),
        domain.values("expert_bias", False, True),
    )
    for index, (tokens, *sizes) in enumerate(
        ((0, 2, 1, 8, 4), (1, 3, 2, 8, 5), (17, 8, 3, 32, 24), (5, 4, 4, 7, 9), (64, 16, 1, 16, 8))
    ):
        names = ("num_experts", "top_k", "hidden_size", "expert_features")
        declared = [domain.values(name, size) for name, size in zip(names, sizes, strict=True)]
        if all(declared):
            chosen = [values[index % len(values)] for values in declared]
            for gate, bias in product(gates, biases):
                yield _expert_case(tokens, chosen, gate == "clamped_swiglu", bias, draw)
                if index == 2:
                    yield _expert_case(
                        tokens, chosen, gate == "clamped_swiglu", bias, draw, elsewhere=2
                    )


def _expert_case(
    tokens: int,
    sizes: Sequence[int],
    is_clamped: bool,
    bias: bool,
    draw: Draw,
    *,
    elsewhere: int = 0,
) -> Case:
    """Return a case in which so many experts before the first and behind the last may be chosen."""
    num_experts, top_k, hidden, features = sizes
    clamped = ClampedSwiGLU(1.7, 1.5) if is_clamped else None
    group = ExpertGroup(
        "experts", (0,), num_experts, hidden, features, Routing(top_k), clamped, bias
    )
    args: tuple[torch.Tensor, ...] = (
        draw.floats(tokens, hidden),
        draw.distinct(num_experts + 2 * elsewhere, tokens, top_k) - elsewhere,
        draw.uniform(tokens, top_k).softmax(-1).to(draw.dtype),
        draw.floats(num_experts, 2 * features, hidden, scale=hidden**-0.5),
        draw.floats(num_experts, hidden, features, scale=features**-0.5),
    )
    if bias:
        args += (
            draw.floats(num_experts, 2 * features, scale=0.3),
            draw.floats(num_experts, hidden, scale=0.3),
        )
    name = f"{tokens} tokens, {top_k} of {num_experts}, {hidden} x {features}"
    name += ", clamped" * is_clamped + ", bias" * bias + ", some elsewhere" * bool(elsewhere)
    return Case(name, args, {"clamped": clamped}, group.traits())


def _shared_cases(domain: Domain) -> Iterator[Case]:
    draw = Draw(domain)
    for tokens, hidden in ((0, 8), (1, 8), (9, 64), (4, 7)):
        routed, shared = draw.floats(tokens, hidden), draw.floats(tokens, hidden)
        args = (routed, shared, draw.floats(tokens, 1, scale=4))
        yield Case(f"{tokens} rows of {hidden}", args)
        yield Case(f"{tokens} rows of {hidden}, no gate", args[:2])


def _slot_cases(domain: Domain) -> Iterator[Case]:
    import torch

    draw = Draw(domain)
    for name, tokens, copies in (
        ("no tokens", 0, (1, 1, 1)),
        ("one slot each", 5, (1, 1, 1, 1)),
        ("copies of some", 9, (3, 1, 2, 1)),
        ("one expert everywhere", 7, (4, 1)),
    ):
        numbers = draw.distinct(sum(copies), sum(copies)).split_with_sizes(copies)
        rows = [[*own.tolist(), *own[:1].tolist() * (max(copies) - len(own))] for own in numbers]
        args = draw.distinct(len(copies), tokens, 2), torch.tensor(rows), torch.tensor(copies)
        yield Case(name, args)


def _count_cases(domain: Domain) -> Iterator[Case]:
    import torch

    draw = Draw(domain)
    for name, tokens, own, first in (
        ("no tokens", 0, 3, 0),
        ("all slots are its own", 6, 8, 0),
        ("the second of two ranks", 9, 4, 4),
        ("none of its own", 5, 2, 20),
    ):
        counts = torch.arange(own + 1)
        yield Case(name, (draw.distinct(8, tokens, 2), counts), {"first": first})


@operator(
    "moe.route",
    cases=_route_cases,
    tokens=("logits_TE",),
    placement="T E!, E! -> T X!, T X!; X=routing.top_k",
)
def route(
    logits_TE: torch.Tensor, bias_E: torch.Tensor | None = None, *, routing: Routing
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose the experts of each token and weigh them.

    A token takes the experts with the best score + bias, the lower number first on a tie; weights
    come from the scores without the bias. Scores are float32 or wider.

    Args:
        logits_TE: (T, E) float, device.
        bias_E: (E,) same dtype, or None: zeros.
        routing: what is asked for.
    Returns:
        Weights (T, X), dtype of the logits, and experts (T, X) int64, best first.
    Source: Outrageously Large Neural Networks, Shazeer et al. 2017; bias, groups and sigmoid:
        DeepSeek-V3 Technical Report, 2024, section 2.1.
    """
    scores = logits_TE.softmax(-1) if routing.score == "softmax" else logits_TE.sigmoid()
    ranks = scores if bias_E is None else scores + bias_E
    if routing.groups > 1:
        ranks = ranks.masked_fill(~eligible(ranks, routing), float("-inf"))
    experts = ranks.argsort(dim=-1, descending=True, stable=True)[:, : routing.top_k]
    weights = scores.gather(-1, experts)
    if routing.normalise:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights * routing.scale, experts


def eligible(ranks_TE: torch.Tensor, routing: Routing) -> torch.Tensor:
    """Return (T, E) bool: whether the expert's group is among the token's best."""
    import torch

    grouped = ranks_TE.view(len(ranks_TE), routing.groups, ranks_TE.shape[1] // routing.groups)
    worth = grouped.sort(-1, descending=True).values[..., : routing.group_best].sum(-1)
    best = worth.argsort(dim=-1, descending=True, stable=True)[:, : routing.top_groups]
    chosen = torch.zeros_like(worth, dtype=torch.bool).scatter_(1, best, True)
    return chosen.repeat_interleave(grouped.shape[-1], dim=-1)


@operator(
    "moe.experts",
    cases=_expert_cases,
    tolerance=EXPERTS_TOLERANCE,
    slot="moe",
    tokens=("x_TD", "experts_TX", "weights_TX"),
    placement="T D!, E[T X!], T X!, E 2F D!, ~E D! F, E 2F, ~E D! -> T D!",
)
def experts(
    x_TD: torch.Tensor,
    experts_TX: torch.Tensor,
    weights_TX: torch.Tensor,
    gate_up_EFD: torch.Tensor,
    down_EDF: torch.Tensor,
    gate_up_bias_EF: torch.Tensor | None = None,
    down_bias_ED: torch.Tensor | None = None,
    *,
    clamped: ClampedSwiGLU | None = None,
) -> torch.Tensor:
    """Sum each token's experts: sum over x of weight_x (down_e(gate(gate_up_e x)) + bias).

    A number outside [0, E) is an expert that is held elsewhere, and adds nothing: a rank that holds
    some of the experts is given their numbers less its first one.

    Args:
        x_TD: (T, D) float, device.
        experts_TX: (T, X) int64, device; the experts of a token differ.
        weights_TX: (T, X) float.
        gate_up_EFD: (E, 2 F, D) same dtype as x; gate rows in [0, F), up rows in [F, 2 F).
        down_EDF: (E, D, F) same dtype.
        gate_up_bias_EF: (E, 2 F) same dtype, or None.
        down_bias_ED: (E, D) same dtype, or None.
        clamped: the gate; None: silu(g) u.
    Returns:
        (T, D), dtype of x.
    Source: gpt-oss model card, 2025, for the clamped gate.
    """
    import torch

    out = torch.zeros_like(x_TD)
    for token, chosen in enumerate(experts_TX.tolist()):
        for slot, expert in enumerate(chosen):
            if not 0 <= expert < len(gate_up_EFD):
                continue
            gate_up = gate_up_EFD[expert] @ x_TD[token]
            if gate_up_bias_EF is not None:
                gate_up = gate_up + gate_up_bias_EF[expert]
            result = down_EDF[expert] @ _gated(gate_up, clamped)
            if down_bias_ED is not None:
                result = result + down_bias_ED[expert]
            out[token] += weights_TX[token, slot] * result
    return out


def _gated(gate_up: torch.Tensor, clamped: ClampedSwiGLU | None) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    if clamped is None:
        return gate * gate.sigmoid() * up
    gate, up = gate.clamp(max=clamped.limit), up.clamp(-clamped.limit, clamped.limit)
    return gate * (clamped.alpha * gate).sigmoid() * (up + 1)


@operator(
    "moe.slots",
    cases=_slot_cases,
    tolerance=EXACT,
    placement="T! X, E! C!, E! -> T! X",
)
def slots(experts_TX: torch.Tensor, slots_EC: torch.Tensor, copies_E: torch.Tensor) -> torch.Tensor:
    """Return the slot that computes each choice: the copies of an expert take turns by token.

    Args:
        experts_TX: (T, X) int64, device, in [0, E).
        slots_EC: (E, C) int64, device; the slots of each expert, the first ones of each row.
        copies_E: (E,) int64, device, in [1, C]; how many those are.
    Returns:
        (T, X) int64: of the token in place t, the slot of number t modulo the copies.
    Source: ours; copies of experts: DeepSeek-V3 Technical Report, 2024, section 3.4.1.
    """
    out = experts_TX.new_empty(experts_TX.shape)
    for token, chosen in enumerate(experts_TX.tolist()):
        for place, expert in enumerate(chosen):
            out[token, place] = slots_EC[expert, token % int(copies_E[expert])]
    return out


@operator(
    "moe.count",
    cases=_count_cases,
    tolerance=EXACT,
    tokens=("slots_TX",),
    placement="T! X!, - -> T! X!",
)
def count(slots_TX: torch.Tensor, counts_S: torch.Tensor, *, first: int) -> torch.Tensor:
    """Count the choices that this rank's slots compute, and number slots from its first one.

    Args:
        slots_TX: (T, X) int64, device; slots of all ranks.
        counts_S: (S + 1,) int64, device, of a rank of S slots; raised in place by the choices of
            each slot, the last by those of other ranks' slots.
        first: number of the rank's first slot.
    Returns:
        (T, X) int64: slots less the first one; other ranks' are outside [0, S).
    Source: ours.
    """
    own_TX = slots_TX - first
    for slot in own_TX.flatten().tolist():
        counts_S[slot if 0 <= slot < len(counts_S) - 1 else -1] += 1
    return own_TX


@operator(
    "moe.add_shared",
    cases=_shared_cases,
    overwrites=("routed_TD",),
    tokens=("routed_TD", "shared_TD", "gate_T1"),
    placement="~T D, ~T D, T 1 -> T D",
)
def add_shared(
    routed_TD: torch.Tensor, shared_TD: torch.Tensor, gate_T1: torch.Tensor | None = None
) -> torch.Tensor:
    """Add the expert that every token has: routed + sigmoid(gate) shared, or + shared.

    Args:
        routed_TD: (T, D) float, device; may be overwritten.
        shared_TD: (T, D) same dtype.
        gate_T1: (T, 1) same dtype, before the sigmoid; None: no gate.
    Returns:
        (T, D), dtype of the inputs.
    Source: DeepSeekMoE, Dai et al. 2024: the shared expert; its gate: Qwen1.5-MoE, 2024.
    """
    if gate_T1 is None:
        return routed_TD + shared_TD
    return routed_TD + gate_T1.sigmoid() * shared_TD
