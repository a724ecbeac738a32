"""vLLM v1 `Scheduler` and `KVCacheManager`, driven without a model; wheel unpacked at $VLLM_SITE.

VLLM_HASH picks the prefix hash (sha256, vLLM's own default), VLLM_BLOCK the block (16).
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, os.environ["VLLM_SITE"])
from . import import_stubs

import_stubs.install("xgrammar", "llguidance")
import torch  # noqa: E402
import vllm.platforms  # noqa: E402
from vllm.platforms.cpu import CpuPlatform  # noqa: E402

vllm.platforms._current_platform = CpuPlatform()
from vllm.config import (  # noqa: E402
    CacheConfig,
    DeviceConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.sampling_params import SamplingParams  # noqa: E402
from vllm.utils.hashing import get_hash_fn_by_name  # noqa: E402
from vllm.v1.core.kv_cache_utils import (  # noqa: E402
    get_request_block_hasher,
    init_none_hash,
)
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402
from vllm.v1.kv_cache_interface import (  # noqa: E402
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
)
from vllm.v1.outputs import ModelRunnerOutput  # noqa: E402
from vllm.v1.request import Request  # noqa: E402

HASH = os.environ.get("VLLM_HASH", "sha256")
BLOCK_TOKENS = int(os.environ.get("VLLM_BLOCK", "16"))
NAME = f"vllm-v1/{HASH}/b{BLOCK_TOKENS}"
VERSION = importlib.metadata.version("vllm")


class _Model(SimpleNamespace):
    """Stands for ModelConfig: a plain text decoder."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class Engine:
    """The six calls of an adapter."""

    name, block_size = NAME, BLOCK_TOKENS

    def __init__(self, pool_tokens: int, max_running: int, token_budget: int, max_len: int) -> None:
        cache = CacheConfig(
            block_size=BLOCK_TOKENS,
            cache_dtype="auto",
            enable_prefix_caching=True,
            prefix_caching_hash_algo=HASH,
        )
        num_blocks = cache.num_gpu_blocks = pool_tokens // BLOCK_TOKENS + 1
        config = VllmConfig(
            scheduler_config=SchedulerConfig(
                max_num_seqs=max_running,
                max_num_batched_tokens=max(token_budget, max_running),
                max_model_len=max_len,
                enable_chunked_prefill=True,
                is_encoder_decoder=False,
                async_scheduling=False,
            ),
            cache_config=cache,
            parallel_config=ParallelConfig(),
            device_config=DeviceConfig("cpu"),
        )
        config.model_config = _Model(
            max_model_len=max_len,
            uses_mrope=False,
            is_encoder_decoder=False,
            runner_type="generate",
            is_diffusion=False,
        )
        spec = FullAttentionSpec(
            block_size=BLOCK_TOKENS, num_kv_heads=8, head_size=128, dtype=torch.float16
        )
        hash_function = get_hash_fn_by_name(HASH)
        init_none_hash(hash_function)
        self._hasher = get_request_block_hasher(BLOCK_TOKENS, hash_function)
        self._scheduler = Scheduler(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(
                num_blocks=num_blocks,
                kv_cache_tensors=[],
                kv_cache_groups=[KVCacheGroupSpec(["l0"], spec)],
            ),
            structured_output_manager=SimpleNamespace(
                should_advance=lambda request: False,
                accept_tokens=lambda *arguments, **keywords: True,
                grammar_bitmask=lambda *arguments, **keywords: None,
            ),
            block_size=BLOCK_TOKENS,
            log_stats=True,
        )
        self._prompt_tokens: dict[str, int] = {}

    def submit(self, rid: str, tokens: list[int], max_new: int) -> None:
        """Queue a request."""
        self._prompt_tokens[rid] = len(tokens)
        self._scheduler.add_request(
            Request(
                request_id=rid,
                prompt_token_ids=tokens,
                sampling_params=SamplingParams(max_tokens=max_new, ignore_eos=True),
                pooling_params=None,
                block_hasher=self._hasher,
            )
        )

    def plan(self) -> Any:
        """Plan a step."""
        return self._scheduler.schedule()

    def rows(self, output: Any) -> list[tuple[str, int, int, bool, bool]]:
        """Rows of a plan for the driver; never timed."""
        starts = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        old = output.scheduled_cached_reqs
        starts |= dict(zip(old.req_ids, old.num_computed_tokens, strict=True))
        rows = []
        for rid, count in output.num_scheduled_tokens.items():
            start, length = starts[rid], self._prompt_tokens[rid]
            rows.append((rid, start, count, start < length, start + count >= length))
        return rows

    def commit(self, output: Any, sampled: dict[str, int], finished: set[str]) -> Any:
        """Give back the sampled tokens."""
        ids = list(output.num_scheduled_tokens)
        return self._scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=ids,
                req_id_to_index={rid: row for row, rid in enumerate(ids)},
                sampled_token_ids=[[sampled[rid]] if rid in sampled else [] for rid in ids],
            ),
        )

    def idle(self) -> None:
        """Reap what ended."""
        self._scheduler.schedule()


def make(pool_tokens: int, max_running: int, token_budget: int, max_len: int) -> Engine:
    """Build an engine of one cache group."""
    return Engine(pool_tokens, max_running, token_budget, max_len)
