"""Hugging Face transformers `generate`, float32, on the dense folder."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))


def main() -> None:
    import torch
    from cases import run_cases
    from transformers import AutoModelForCausalLM

    folder, *names = sys.argv[1:]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def generate(prompts: list[list[int]], new_tokens: int) -> int:
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                min_new_tokens=new_tokens,
                max_new_tokens=new_tokens,
                pad_token_id=0,
            )
        return (out.shape[1] - ids.shape[1]) * out.shape[0]

    run_cases(names, generate)


if __name__ == "__main__":
    main()
