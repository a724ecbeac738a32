"""Record what transformers' AutoTokenizer makes of hard texts on the real SmolLM2 file.

    python tests/support/record_smollm2_ids.py MODEL.gguf tests/core/tokenizer/smollm2_ids.json

Owner: tokenizer. The digest covers 10,000 texts of tests/support/texts.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.texts import random_texts

SEED, COUNT, NUM_EXAMPLES = 20, 10_000, 40


def main(model: Path, out: Path) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(model.parent), gguf_file=model.name)
    texts = random_texts(SEED, COUNT)
    digest = hashlib.sha256()
    examples = []
    for index, text in enumerate(texts):
        ids = tokenizer.encode(text)
        digest.update(json.dumps(ids).encode())
        if index < NUM_EXAMPLES:
            examples.append([text, ids])
    record = {"seed": SEED, "count": COUNT, "sha256": digest.hexdigest(), "examples": examples}
    out.write_text(json.dumps(record) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
