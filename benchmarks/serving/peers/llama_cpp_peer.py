"""llama.cpp (xllamacpp), the packed GGUF as it is."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))


def main() -> None:
    import xllamacpp
    from cases import run_cases

    gguf, *names = sys.argv[1:]
    params = xllamacpp.CommonParams()
    params.model.path = gguf
    params.n_parallel = 4
    params.n_ctx = 4096
    params.cpuparams.n_threads = os.cpu_count() or 1
    server = xllamacpp.Server(params)

    def one(ids: list[int], new_tokens: int, made: list[int]) -> None:
        request = {
            "prompt": ids,
            "n_predict": new_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,
        }
        made.append(server.handle_completions(request)["usage"]["completion_tokens"])

    def generate(prompts: list[list[int]], new_tokens: int) -> int:
        made: list[int] = []
        threads = [threading.Thread(target=one, args=(ids, new_tokens, made)) for ids in prompts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(made)

    run_cases(names, generate)


if __name__ == "__main__":
    main()
