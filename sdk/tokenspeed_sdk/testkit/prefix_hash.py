"""What the scripted model computes: a hash of each token's whole prefix, through every cache kind.

Each token has small integer features. The full layer's attention with a zero query returns the
exact mean of the features of all tokens so far, the window layer's of the last `window` tokens; a
state layer keeps a polynomial over all tokens, and the features of the last three. A wrong block,
row, offset, copy or length changes the hash.
Legend: T tokens, F features, R rows.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from tokenspeed_sdk import CacheField, CacheGroup, ConfigError, KVView, StateView, gqa_fields, ops

if TYPE_CHECKING:
    from tokenspeed_sdk import ForwardContext, ModelContext, StateRows

FULL, WINDOW, STATE = "full", "window", "state"
NUM_FEATURES = 16
FEATURE_VALUES = 32
"""Features are integers below this: their sums round to the right integer up to 50,000 tokens."""
RECENT_TOKENS = 3
_FACTOR, _MODULUS = 31, 8191
"""s * 31 + feature stays below 2^24, so that float32 counts exactly."""


def hash_groups(
    window: int, state_layers: int, speculation: str = "rows_per_position"
) -> tuple[CacheGroup, ...]:
    """Return a full layer, a window layer where window > 0, and so many state layers.

    Args:
        speculation: of the state layers' group.
    """
    groups = [CacheGroup(FULL, "full", (0,), gqa_fields(1, NUM_FEATURES))]
    if window:
        fields = gqa_fields(1, NUM_FEATURES)
        groups.append(CacheGroup(WINDOW, "window", (1,), fields, window=window))
    if state_layers:
        first = 1 + (window > 0)
        fields = (
            CacheField("sum", (NUM_FEATURES,), "float32"),
            CacheField("recent", (NUM_FEATURES, RECENT_TOKENS), "float32"),
        )
        layers = tuple(range(first, first + state_layers))
        groups.append(CacheGroup(STATE, "state", layers, fields, speculation=speculation))
    return tuple(groups)


class PrefixHash:
    """Hashes each token's whole prefix.

    Args:
        window, state_layers: which cache groups there are, as in `hash_groups`.
    """

    def __init__(self, context: ModelContext, *, window: int = 0, state_layers: int = 0) -> None:
        if context.dtype != torch.float32:
            raise ConfigError(
                f"the scripted model was given dtype {context.dtype}, it needs float32 to count "
                "exactly; use --dtype float32"
            )
        self._context = context
        self._window = window
        groups = hash_groups(window, state_layers)
        self._state_layers = groups[-1].layers if state_layers else ()
        num_layers = 1 + (window > 0) + state_layers
        generator = torch.Generator().manual_seed(20)
        shape = (1 + num_layers, NUM_FEATURES)
        odd = torch.randint(1 << 20, 1 << 40, shape, generator=generator) * 2 + 1
        self._factors_F, *self._mixers_F = odd.to(context.device)

    def __call__(self, token_ids_T: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """Store the step's tokens and return (T,) int64 hashes of the prefixes they end."""
        v_TF = self._features(token_ids_T, context.positions_T)
        counts_T = context.positions_T + 1
        sums = [self._attended(v_TF, context, 0, FULL, counts_T)]
        if self._window:
            seen_T = counts_T.clamp(max=self._window)
            sums.append(self._attended(v_TF, context, 1, WINDOW, seen_T))
        sums += [self._folded(v_TF, context, layer) for layer in self._state_layers]
        mixed = (
            mix(sums_TF * mixers_F) for sums_TF, mixers_F in zip(sums, self._mixers_F, strict=True)
        )
        return torch.stack(list(mixed)).sum(dim=(0, 2)).abs()

    def _attended(
        self,
        v_TF: torch.Tensor,
        context: ForwardContext,
        layer: int,
        group: str,
        counts_T: torch.Tensor,
    ) -> torch.Tensor:
        """Store features as values and return the sums of those that each token sees."""
        metadata, kv = context.attention_metadata[group], context.kv[layer]
        backend = self._context.attention[group]
        assert isinstance(kv, KVView)
        value = v_TF.to(torch.float32).unsqueeze(1)
        zero = torch.zeros_like(value)
        backend.write(zero, value, kv, metadata)
        mean_TF = backend.attend(zero, kv, metadata, scale=1.0).squeeze(1)
        return torch.round(mean_TF.double() * counts_T.unsqueeze(1)).long()

    def _folded(self, v_TF: torch.Tensor, context: ForwardContext, layer: int) -> torch.Tensor:
        """Fold each row's tokens into its state, token by token; return the state at each."""
        view, rows = context.kv[layer], context.state_rows[layer]
        assert isinstance(view, StateView)
        return ops.state.in_stages(
            partial(self._fold, view, layer), (v_TF,), rows, context.query_start
        )

    @staticmethod
    def _fold(
        view: StateView, layer: int, v_TF: torch.Tensor, rows: StateRows, query_start: Any
    ) -> torch.Tensor:
        states = [view.fields[name][rows.read_R.clamp(min=0)] for name in ("sum", "recent")]
        for state in states:
            state[rows.read_R < 0] = 0.0
        out_TF = torch.empty_like(v_TF)
        for row, (start, end) in enumerate(itertools.pairwise(query_start.tolist())):
            sum_F, recent_F3 = states[0][row], states[1][row]
            for token in range(start, end):
                sum_F.copy_((sum_F * _FACTOR + v_TF[token] + layer) % _MODULUS)
                recent_F3.copy_(torch.cat([recent_F3[:, 1:], v_TF[token, :, None]], dim=1))
                out_TF[token] = (sum_F.double() + 10_007 * recent_F3.double().sum(dim=1)).long()
        view.fields["sum"][rows.write_R] = states[0]
        view.fields["recent"][rows.write_R] = states[1]
        return out_TF

    def _features(self, token_ids_T: torch.Tensor, positions_T: torch.Tensor) -> torch.Tensor:
        seed_T = token_ids_T * 0x9E3779B97F4A7 + positions_T * 0x85EBCA77C2B2AE + 1
        return (mix(seed_T.unsqueeze(1) * self._factors_F) >> 7) % FEATURE_VALUES


def mix(x: torch.Tensor) -> torch.Tensor:
    """Scramble int64 values; products wrap."""
    x = (x ^ (x >> 29)) * 0x1CE4E5B9BF58476D
    return x ^ (x >> 32)
