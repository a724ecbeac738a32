"""CPU time of the front end for a second turn: template, encode, submit, on 100k tokens of history.

Usage: front_end.py MODEL; one JSON line.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time


def main() -> None:
    """Time the second turn of five conversations, thread CPU time."""
    import msgspec

    from tokenspeed import SamplingParams
    from tokenspeed.engine.messages import ModelInfo
    from tokenspeed.engine.submits import make_submit
    from tokenspeed.tokenizer import ChatTemplate, EncodeCache, load_tokenizer

    tokenizer = load_tokenizer(sys.argv[1])
    template, cache = ChatTemplate.of(tokenizer), EncodeCache(tokenizer)
    assert template is not None
    model = ModelInfo(
        name="m",
        path=sys.argv[1],
        architecture="LlamaForCausalLM",
        vocab_size=tokenizer.vocab_size,
        max_context_tokens=1 << 20,
        max_prompt_tokens=1 << 20,
        eos_token_ids=(2,),
    )
    rng = random.Random(7)
    words = ["river", "stone", "cloud", "engine", "def f(x):\n    return x\n", "42", "garden"]

    def text(num_words: int) -> str:
        return " ".join(rng.choice(words) for _ in range(num_words))

    def submit(messages: list[dict[str, str]]) -> tuple[float, int]:
        start = time.thread_time()
        ids = cache.encode(template.render(messages))
        message = make_submit(model, ids, SamplingParams(max_tokens=8), "r")
        msgspec.msgpack.encode(message)
        return time.thread_time() - start, len(ids)

    seconds, tokens = [], []
    for _ in range(5):
        messages = [{"role": "system", "content": text(2000)}]
        for turn in range(60):
            role = "assistant" if turn % 2 else "user"
            messages.append({"role": role, "content": text(820)})
        submit(messages)
        messages += [
            {"role": "assistant", "content": text(100)},
            {"role": "user", "content": text(230)},
        ]
        took, count = submit(messages)
        seconds.append(took)
        tokens.append(count)
    print(
        json.dumps(
            {"cpu_ms": statistics.median(seconds) * 1e3, "tokens": statistics.median(tokens)}
        )
    )


if __name__ == "__main__":
    main()
