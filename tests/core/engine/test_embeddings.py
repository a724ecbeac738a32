"""Embeddings are transformers' last hidden states: alone, in company, in chunks, from the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.support.engine_parts import GREEDY, Job, build_parts
from tests.support.engines import TEST_SETTINGS
from tests.support.make_smollm2_expected import CHATS, TEXTS, load_reference
from tests.support.served_checkpoints import serve_checkpoint
from tests.support.tiny_checkpoints import make_checkpoint, make_prompts

from tokenspeed import LLM, SamplingParams
from tokenspeed.checkpoint.default_model import default_model_path
from tokenspeed.engine.vectors import EMBED, unit_vector
from tokenspeed.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any

    from numpy.typing import NDArray

PROMPTS = make_prompts([1, 9, 16, 17, 30, 61, 100], shared=32)
SHORT = SamplingParams(temperature=0.0, max_tokens=8)
TOLERANCES = {"qwen3": 2e-5, "gpt_oss": 2e-5, "qwen3_next": 2e-4}
"""Parts of the largest element, in float32; a recurrent state is summed up in another order."""


def expected(model: Any, prompts: Sequence[Sequence[int]]) -> list[NDArray[np.float32]]:
    """Return the last hidden states of transformers' model, each prompt alone."""
    import torch

    states = []
    for prompt in prompts:
        ids = torch.tensor([list(prompt)])
        with torch.inference_mode():
            state = model.model(ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        states.append(state[0, -1].float().numpy())
    return states


def reference(path: Path) -> Any:
    import torch
    import transformers

    loaded = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    return loaded.eval()


def assert_close(
    found: NDArray[np.float32], wanted: NDArray[np.float32], tolerance: float = 2e-5
) -> None:
    assert found.dtype == np.float32
    scale = float(np.abs(wanted).max())
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("name", TOLERANCES)
def test_states_are_those_of_transformers_however_they_are_computed(
    name: str, tmp_path: Path
) -> None:
    path = make_checkpoint(name, tmp_path)
    wanted = expected(reference(path), PROMPTS)
    asked = [Job(prompt, EMBED) for prompt in PROMPTS]
    talk = [Job([*prompt, 7], GREEDY, start_step=2) for prompt in PROMPTS[:4]]
    ways: tuple[dict[str, Any], ...] = (
        {"max_step_tokens": 512},
        {"max_step_tokens": 24},
        {"max_step_tokens": 24, "depth": 1, "poison": True},
        {"max_step_tokens": 64, "num_blocks": 12},
    )
    for way in ways:
        parts = build_parts(path, **{"num_blocks": 60, **way})
        mixed = parts.run([*asked, *talk])
        assert mixed.embeddings.keys() == set(range(len(asked)))
        for place, state in mixed.embeddings.items():
            assert_close(state, wanted[place], TOLERANCES[name])
            assert (len(mixed.tokens[place]), mixed.reasons[place]) == (1, "length")


def test_a_prompt_that_is_in_the_cache_is_embedded_all_the_same(tmp_path: Path) -> None:
    path = make_checkpoint("qwen3", tmp_path)
    wanted = expected(reference(path), PROMPTS)
    parts = build_parts(path, num_blocks=60)
    plain = parts.run([Job(PROMPTS[-1], SHORT)])
    for _ in range(2):
        again = parts.run([Job(prompt, EMBED) for prompt in PROMPTS])
        for place, state in again.embeddings.items():
            assert_close(state, wanted[place])
        assert again.cached_tokens[-1] == len(PROMPTS[-1]) - 1
    assert parts.run([Job(PROMPTS[-1], SHORT)]).tokens == plain.tokens


def test_vectors_have_length_one_and_are_cut_before(tmp_path: Path) -> None:
    path = serve_checkpoint("qwen3", tmp_path)
    texts = ["one text", "another text, which is longer"]
    with LLM(str(path), **{**TEST_SETTINGS, "plugins": (), "kv_gib": 0.01}) as llm:
        ids = [list(llm.tokenizer.encode(text)) for text in texts]
        whole = llm.embed(texts)
        np.testing.assert_allclose(llm.embed(ids), whole, rtol=0, atol=1e-5)
        (alone,) = llm.embed(texts[0])
        short = llm.embed(texts, dimensions=5)
        with pytest.raises(RequestError, match="dimensions is 49, this model's vectors have 48"):
            llm.embed(texts, dimensions=49)
        with pytest.raises(RequestError, match="an embedding needs 1"):
            llm.generate(texts[0], SamplingParams(embeds=True))
        assert llm.generate(texts[0], SHORT)[0].token_ids
    for vector, cut, state in zip(whole, short, expected(reference(path), ids), strict=True):
        assert_close(vector, state / np.linalg.norm(state))
        assert_close(cut, state[:5] / np.linalg.norm(state[:5]))
    np.testing.assert_allclose(alone, whole[0], rtol=0, atol=1e-5)


def test_a_vector_of_zeros_stays_one() -> None:
    assert unit_vector(bytes(12)).tolist() == [0.0] * 3


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_real_model_embeds_as_transformers_does() -> None:
    tokenizer, model = load_reference(default_model_path())
    texts = [*CHATS, *TEXTS]
    wanted = expected(model, [tokenizer.encode(text) for text in texts])
    with LLM(max_running=8, kv_gib=0.5, max_step_tokens=64) as llm:
        for vector, state in zip(llm.embed(texts), wanted, strict=True):
            np.testing.assert_allclose(vector, state / np.linalg.norm(state), rtol=0, atol=2e-5)
