"""Writes the GGUF's weights as a dense Hugging Face folder through transformers, once."""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    gguf, target = Path(sys.argv[1]), Path(sys.argv[2])
    if (target / "config.json").exists():
        return
    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    model = AutoModelForCausalLM.from_pretrained(
        **where, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    partial = target.with_suffix(".partial")
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    partial.rename(target)


if __name__ == "__main__":
    main()
