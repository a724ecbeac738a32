"""Speed of the engine on a device: models of published sizes with random weights, in one process.

    python -m benchmarks.device qwen3-8b [--only decode,prefill] [--setting depth=0] [--scale 64]

The figures go to benchmarks/results, each beside the peer's and the target.
"""
