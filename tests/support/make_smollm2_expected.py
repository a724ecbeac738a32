"""Record what transformers decodes greedily from the real SmolLM2 file, float32, dequantized.

    python tests/support/make_smollm2_expected.py MODEL.gguf tests/core/models/smollm2_tokens.json

Owner: models. Half a minute of loading: the default suite compares with the record, the slow one
decodes anew.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

NUM_TOKENS = 64
CHATS = (
    "What is the capital of France? Answer in one sentence.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "List three differences between a cat and a dog.",
    "Explain, step by step, how a bicycle stays upright. " * 12,
)
TEXTS = ("Once upon a time, in a village by the sea,", "def quicksort(items):\n    ")


def load_reference(model: Path) -> tuple[Any, Any]:
    """Return transformers' tokenizer and float32 model of a GGUF file."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(str(model.parent), gguf_file=model.name)
    reference = AutoModelForCausalLM.from_pretrained(
        str(model.parent),
        gguf_file=model.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    return tokenizer, reference.eval()


def decode_greedily(reference: Any, prompt_ids: list[int], num_tokens: int) -> list[int]:
    """Return the next tokens; end-of-turn tokens do not end it."""
    import torch

    output = reference.generate(
        torch.tensor([prompt_ids]),
        attention_mask=torch.ones(1, len(prompt_ids), dtype=torch.int64),
        max_new_tokens=num_tokens,
        min_new_tokens=num_tokens,
        do_sample=False,
        eos_token_id=None,
    )
    return output[0, len(prompt_ids) :].tolist()


def main(model: Path, out: Path) -> None:
    """Write the record."""
    tokenizer, reference = load_reference(model)
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
        )
        for text in CHATS
    ]
    prompts += [tokenizer.encode(text) for text in TEXTS]
    entries = [
        {"prompt_ids": prompt, "tokens": decode_greedily(reference, prompt, NUM_TOKENS)}
        for prompt in prompts
    ]
    out.write_text(json.dumps(entries) + "\n")
    for entry in entries:
        print(repr(tokenizer.decode(entry["tokens"])))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
