"""ScriptedForCausalLM: a model without weights, for tests that are not about numbers.

Served like any other, with `--plugins sdk`. In mode "script" it emits given tokens, then eos. In
mode "hash" the next token is a pure function of all tokens before it: each token's features are
stored as values in the paged cache, and attention with a zero query returns their exact mean, so
that a wrong block, offset, copy or length changes the answer. Faults are triggered by tokens.
Legend: T tokens, F features, R rows, V vocabulary.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from tokenspeed_sdk import CacheGroup, CheckpointError, ConfigError, KVView, gqa_fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tokenspeed_sdk import ForwardContext, LinearWeight, ModelContext

CACHE_GROUP = "full"
NUM_FEATURES = 16
FEATURE_VALUES = 32
"""Features are integers below this: their sums round to the right integer up to 50,000 tokens."""
CRASH_EXIT_CODE = 86
MODES = ("script", "hash")


@dataclass(frozen=True, slots=True)
class ScriptedConfig:
    """The fields of config.json that this model reads, beside the usual ones.

    Args:
        mode: "script" or "hash".
        script: token ids by output index; eos after the last.
        hash_tokens: in mode "hash", emitted ids lie in [0, hash_tokens); 0: the vocabulary.
        logit_gap: logit of the next token, all others have 0; small values make sampling random.
        step_ms: sleep per step.
        token_us: sleep per query token.
        crash_on_token, hang_on_token, raise_on_token, nan_on_token: what happens to the process,
            the step or the row whose input holds this id; -1: nothing.
    """

    vocab_size: int
    eos_token_id: int
    mode: str = "hash"
    script: tuple[int, ...] = ()
    hash_tokens: int = 0
    logit_gap: float = 30.0
    step_ms: float = 0.0
    token_us: float = 0.0
    crash_on_token: int = -1
    hang_on_token: int = -1
    raise_on_token: int = -1
    nan_on_token: int = -1

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> ScriptedConfig:
        """Read and check config.json.

        Raises:
            ConfigError: a field is missing or out of range; names field and value.
        """
        values = {item.name: config[item.name] for item in fields(cls) if item.name in config}
        try:
            read = cls(**values | {"script": tuple(values.get("script", ()))})
        except TypeError as error:
            raise ConfigError(f"config.json of the scripted model: {error}; add it") from error
        if read.mode not in MODES:
            raise ConfigError(
                f"config.json: mode is {read.mode!r}, allowed: {', '.join(MODES)}; change it"
            )
        return read


class PrefixHash:
    """Hashes each token's whole prefix, through the paged cache of one layer."""

    def __init__(self, context: ModelContext) -> None:
        if context.dtype != torch.float32:
            raise ConfigError(
                f"the scripted model was given dtype {context.dtype}, it needs float32 to count "
                "exactly; use --dtype float32"
            )
        self._backend = context.attention[CACHE_GROUP]
        generator = torch.Generator().manual_seed(20)
        odd = torch.randint(1 << 20, 1 << 40, (2, NUM_FEATURES), generator=generator) * 2 + 1
        self._factors_F, self._mixers_F = odd.to(context.device)

    def __call__(self, token_ids_T: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """Store the step's tokens and return (T,) int64 hashes of the prefixes they end."""
        metadata, kv = context.attention_metadata[CACHE_GROUP], context.kv[0]
        assert isinstance(kv, KVView)
        v_TF = self._features(token_ids_T, context.positions_T)
        value = v_TF.to(torch.float32).unsqueeze(1)
        zero = torch.zeros_like(value)
        self._backend.write(zero, value, kv, metadata)
        mean_TF = self._backend.attend(zero, kv, metadata, scale=1.0).squeeze(1)
        sums_TF = torch.round(mean_TF.double() * (context.positions_T + 1).unsqueeze(1)).long()
        return _mix(sums_TF * self._mixers_F).sum(dim=1).abs()

    def _features(self, token_ids_T: torch.Tensor, positions_T: torch.Tensor) -> torch.Tensor:
        seed_T = token_ids_T * 0x9E3779B97F4A7 + positions_T * 0x85EBCA77C2B2AE + 1
        return (_mix(seed_T.unsqueeze(1) * self._factors_F) >> 7) % FEATURE_VALUES


class ScriptedForCausalLM:
    """A CausalLM whose hidden state is the id of the next token; NaN fails the row."""

    architectures: ClassVar[tuple[str, ...]] = ("ScriptedForCausalLM",)

    def __init__(self, config: Mapping[str, Any], context: ModelContext) -> None:
        self._config = ScriptedConfig.read(config)
        self._prefix_hash = PrefixHash(context)
        script = (*self._config.script, self._config.eos_token_id)
        self._script = torch.tensor(script, device=context.device)

    @classmethod
    def cache_groups(cls, config: Mapping[str, Any]) -> tuple[CacheGroup, ...]:
        """One layer with one head of features."""
        return (CacheGroup(CACHE_GROUP, "full", (0,), gqa_fields(1, NUM_FEATURES)),)

    def load_weights(self, weights: Iterable[tuple[str, LinearWeight]]) -> None:
        """Take no tensors.

        Raises:
            CheckpointError: there is one.
        """
        for name, _ in weights:
            raise CheckpointError(
                f"the scripted model got tensor {name!r}, it has no weights; remove them"
            )

    def forward(self, token_ids_T: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """Return (T, 1) float32: the token that follows each position."""
        self._have_faults(token_ids_T)
        hashes_T = self._prefix_hash(token_ids_T, context)
        if self._config.mode == "hash":
            next_T = hashes_T % (self._config.hash_tokens or self._config.vocab_size)
        else:
            next_T = self._scripted(token_ids_T, context)
        hidden_T1 = next_T.to(torch.float32).unsqueeze(1)
        return hidden_T1.masked_fill(
            (token_ids_T == self._config.nan_on_token).unsqueeze(1), float("nan")
        )

    def compute_logits(self, hidden_RD: torch.Tensor) -> torch.Tensor:
        """Return (R, V) float32 with `logit_gap` at the next token."""
        logits_RV = hidden_RD.new_zeros(len(hidden_RD), self._config.vocab_size)
        is_nan_R1 = hidden_RD.isnan()
        next_R1 = hidden_RD.masked_fill(is_nan_R1, 0.0).long()
        logits_RV.scatter_(1, next_R1, self._config.logit_gap)
        return logits_RV.masked_fill(is_nan_R1, float("nan"))

    def _scripted(self, token_ids_T: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        next_T = torch.full_like(token_ids_T, self._config.eos_token_id)
        last = torch.as_tensor(context.query_start[1:] - 1).long()
        index = torch.as_tensor(context.output_index_R.copy()).long()
        next_T[last] = self._script[index.clamp(0, len(self._script) - 1)]
        return next_T

    def _have_faults(self, token_ids_T: torch.Tensor) -> None:
        config = self._config
        time.sleep((config.step_ms * 1e3 + config.token_us * len(token_ids_T)) / 1e6)
        if bool((token_ids_T == config.crash_on_token).any()):
            os._exit(CRASH_EXIT_CODE)
        if bool((token_ids_T == config.hang_on_token).any()):
            time.sleep(24 * 3600)
        if bool((token_ids_T == config.raise_on_token).any()):
            raise RuntimeError(f"scripted failure on token {config.raise_on_token}")


def _mix(x: torch.Tensor) -> torch.Tensor:
    """Scramble int64 values; products wrap."""
    x = (x ^ (x >> 29)) * 0x1CE4E5B9BF58476D
    return x ^ (x >> 32)


EntryClass = ScriptedForCausalLM
