"""vLLM's CPU build, float32, eager, offline `LLM` on the dense folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_HOST_IP", "127.0.0.1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def main() -> None:
    from cases import run_cases
    from vllm import LLM, SamplingParams

    folder, *names = sys.argv[1:]
    llm = LLM(model=folder, dtype="float32", max_model_len=2048, enforce_eager=True)

    def generate(prompts: list[list[int]], new_tokens: int) -> int:
        params = SamplingParams(
            temperature=0, max_tokens=new_tokens, min_tokens=new_tokens, ignore_eos=True
        )
        outputs = llm.generate(
            [{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False
        )
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    run_cases(names, generate)


if __name__ == "__main__":
    main()
