"""ScriptedForCausalLM: a model without weights, for tests that are not about numbers.

Served like any other, with `--plugins sdk`. In mode "script" it emits given tokens, then eos; in
mode "dialogue" the answer of a script that a prompt asks for (`dialogue.py`), as clients with tools
need it. In mode "hash" the next token is a pure function of all tokens before it, computed through
the caches (`prefix_hash.py`): a wrong block, row, offset, copy or length changes the answer. Faults
are triggered by tokens.
Legend: T tokens, R rows, V vocabulary.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from tokenspeed_sdk import CheckpointError, ConfigError
from tokenspeed_sdk.testkit.dialogue import Dialogue
from tokenspeed_sdk.testkit.prefix_hash import PrefixHash, hash_groups

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from tokenspeed_sdk import CacheGroup, ForwardContext, LinearWeight, ModelContext

CRASH_EXIT_CODE = 86
MODES = ("script", "dialogue", "hash")


@dataclass(frozen=True, slots=True)
class ScriptedConfig:
    """The fields of config.json that this model reads, beside the usual ones.

    Args:
        mode: of MODES.
        script: token ids by output index; eos after the last.
        marker, answers: in mode "dialogue", the token that is counted in a prompt, and the token
            ids of each answer by that count; eos after each.
        window, state_layers: in mode "hash", a sliding-window layer of so many tokens, and layers
            with a recurrent state, beside the full one; 0: none.
        speculation: how the state layers take drafts back; see CacheGroup.
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
    marker: int = -1
    answers: tuple[tuple[int, ...], ...] = ((),)
    window: int = 0
    state_layers: int = 0
    speculation: str = "rows_per_position"
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
        answers = tuple(tuple(answer) for answer in values.get("answers", ((),)))
        values |= {"script": tuple(values.get("script", ())), "answers": answers}
        try:
            read = cls(**values)
        except TypeError as error:
            raise ConfigError(f"config.json of the scripted model: {error}; add it") from error
        if read.mode not in MODES:
            raise ConfigError(
                f"config.json: mode is {read.mode!r}, allowed: {', '.join(MODES)}; change it"
            )
        if not read.answers:
            raise ConfigError("config.json: answers is empty; give one at least")
        return read


class ScriptedForCausalLM:
    """A CausalLM whose hidden state is the id of the next token; NaN fails the row."""

    architectures: ClassVar[tuple[str, ...]] = ("ScriptedForCausalLM",)
    is_replicated: ClassVar[bool] = True

    def __init__(self, config: Mapping[str, Any], context: ModelContext) -> None:
        self._config = ScriptedConfig.read(config)
        self._prefix_hash = PrefixHash(
            context, window=self._config.window, state_layers=self._config.state_layers
        )
        self._dialogue = Dialogue(
            context, self._config.marker, self._config.answers, self._config.eos_token_id
        )
        script = (*self._config.script, self._config.eos_token_id)
        self._script = torch.tensor(script, device=context.device)

    @classmethod
    def cache_groups(cls, config: Mapping[str, Any]) -> tuple[CacheGroup, ...]:
        """One full layer, and a window layer and state layers where the config has them."""
        read = ScriptedConfig.read(config)
        return hash_groups(read.window, read.state_layers, read.speculation)

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
        if self._config.mode == "dialogue":
            next_T = self._answered(token_ids_T, context)
        else:
            hashes_T = self._prefix_hash(token_ids_T, context)
            next_T = hashes_T % (self._config.hash_tokens or self._config.vocab_size)
            if self._config.mode == "script":
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
        """Return the script's token for the last token of each row, and for its drafts."""
        next_T = torch.full_like(token_ids_T, self._config.eos_token_id)
        places, index = _sampled_places(context)
        index = index.clip(0, len(self._script) - 1)
        next_T[torch.from_numpy(places)] = self._script[torch.from_numpy(index)]
        return next_T

    def _answered(self, token_ids_T: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """Return the next token of the answer that each sampled place belongs to."""
        next_T = torch.full_like(token_ids_T, self._config.eos_token_id)
        counts_T = self._dialogue.counts(token_ids_T, context)
        for place, index in zip(*_sampled_places(context), strict=True):
            next_T[place] = self._dialogue.token(int(counts_T[place]), max(0, int(index)))
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


def _sampled_places(context: ForwardContext) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the places of T that are sampled, if their rows are, and their output indices."""
    lengths = np.diff(context.query_start)
    before_end = np.repeat(context.query_start[1:], lengths) - np.arange(1, 1 + lengths.sum())
    num_drafts = np.repeat(context.num_drafts_R, lengths)
    index = np.repeat(context.output_index_R, lengths) + num_drafts - before_end
    places = np.flatnonzero(before_end <= num_drafts)
    return places, index[places]


EntryClass = ScriptedForCausalLM
