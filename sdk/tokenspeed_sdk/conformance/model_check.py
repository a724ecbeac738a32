"""A model of the plugin with a checkpoint of its architecture, run in every way and against truth.

The checkpoint is the author's: a small random one does. Prompts are drawn, share beginnings, and
one is longer than each window that can be passed in reasonable time.
Legend: T tokens, V vocabulary.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from tokenspeed import LLM
from tokenspeed_sdk import HfFolder, Offer
from tokenspeed_sdk.conformance import serving

if TYPE_CHECKING:
    from pathlib import Path

    from tokenspeed.engine.completion import RequestOutput
    from tokenspeed_sdk.conformance.subject import Subject

CHUNK_TOKENS = 48
LONGEST_WINDOW = 1024
"""Windows up to this are passed by a prompt."""


def engine_settings(subject: Subject, folder: Path) -> dict[str, Any]:
    """Return settings that serve the checkpoint with the plugin's own file.

    Raises:
        AssertionError: the plugin offers no such architecture; names both.
    """
    pin = f"model={subject.found.id}/{_offer_of(subject, folder).name}"
    return {"plugins": subject.found.id, "pins": (pin,), "dtype": "float32", "block_tokens": 16}


def windows_of(subject: Subject, folder: Path) -> tuple[int, ...]:
    """Return the windows that the model declares for this checkpoint."""
    groups = _offer_of(subject, folder).load().cache_groups(HfFolder.read(folder).config)
    return tuple(group.window for group in groups if group.window)


def _offer_of(subject: Subject, folder: Path) -> Offer:
    architecture = HfFolder.read(folder).config["architectures"][0]
    offered = {
        name: item.offer
        for item in subject.offers("model")
        if isinstance(item.offer, Offer)
        for name in item.offer.facts["architectures"]
    }
    assert architecture in offered, (
        f"{folder} is of architecture {architecture}, the plugin offers {', '.join(offered)}; give "
        "a checkpoint of one of these"
    )
    return offered[architecture]


def make_prompts(subject: Subject, folder: Path) -> list[list[int]]:
    """Return prompts of 1 to 150 tokens, and one beyond each window that can be passed."""
    vocab_size = min(serving.VOCAB_SIZE, HfFolder.read(folder).config["vocab_size"])
    rng = random.Random(6)
    prompts = [[t % vocab_size for t in prompt] for prompt in serving.make_prompts(8, seed=6)]
    for window in windows_of(subject, folder):
        if window <= LONGEST_WINDOW:
            prompts.append([rng.randrange(vocab_size) for _ in range(window + CHUNK_TOKENS)])
    return prompts


def whole_answers(subject: Subject, folder: Path) -> list[RequestOutput]:
    """Answer one at a time, each prompt in one step, nothing cached."""
    prompts = make_prompts(subject, folder)
    longest = max(map(len, prompts))
    settings = engine_settings(subject, folder) | {"prefix_cache": False}
    with LLM(str(folder), max_step_tokens=longest, **settings) as llm:
        return [llm.generate([prompt], serving.greedy())[0] for prompt in prompts]


def cut_answers(subject: Subject, folder: Path) -> list[list[RequestOutput]]:
    """Answer all together, in chunks, twice; the second time prefixes come from the cache.

    Raises:
        AssertionError: nothing came from the cache.
    """
    prompts = make_prompts(subject, folder)
    settings = engine_settings(subject, folder)
    with LLM(str(folder), max_step_tokens=CHUNK_TOKENS, max_running=8, **settings) as llm:
        answers = [llm.generate(prompts, serving.greedy()) for _ in range(2)]
        assert llm.stats().cached_tokens > 0, "no prefix was found again"
        return answers


def assert_best_in_transformers(reference: Any, answers: list[RequestOutput]) -> None:
    """Compare each chosen token with the best one of transformers' model at its place.

    Raises:
        AssertionError: names the prompt, the place and how much worse the token is.
    """
    import torch

    for number, answer in enumerate(answers):
        assert answer.error is None, f"prompt {number}: {answer.error}"
        prompt, chosen = list(answer.prompt_token_ids), list(answer.token_ids)
        with torch.inference_mode():
            logits_TV = reference(torch.tensor([prompt + chosen])).logits[0, len(prompt) - 1 : -1]
        scores_TV = logits_TV.float().log_softmax(-1)
        for place, token in enumerate(chosen):
            best = int(scores_TV[place].argmax())
            gap = float(scores_TV[place, best] - scores_TV[place, token])
            assert gap < serving.NEARLY_EQUAL["float32"], (
                f"prompt {number} of {len(prompt)} tokens: output {place} is {token}, {best} is "
                f"right and {gap:.3g} more likely (in log probability)"
            )


def reference_model(folder: Path) -> Any:
    """Return transformers' model of the checkpoint in float32, or why there is none."""
    try:
        import torch
        import transformers
    except ImportError as error:
        return str(error)
    try:
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    except (ValueError, OSError, KeyError) as error:
        return f"transformers does not open it: {error}"
