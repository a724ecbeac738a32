"""SGLang's prefix cache and slot allocator; wheel unpacked at $SGL_SITE.

Cache level only: request bookkeeping is left out (its scheduler needs the whole engine).
SGL_TREE = rust (UnifiedRadixCache with the Rust TreeCore, its default), unified-py or py
(RadixCache); SGL_PAGE = 1 (its default) or 64.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
import warnings
from array import array
from typing import Any

warnings.simplefilter("ignore")
TREE = os.environ.get("SGL_TREE", "rust")
PAGE = int(os.environ.get("SGL_PAGE", "1"))
os.environ["SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"] = "rust" if TREE == "rust" else "python"
os.environ.setdefault("SGLANG_RUST_BUILD_MODE", "never")
sys.path.insert(0, os.environ["SGL_SITE"])
from transformers.utils import import_utils  # noqa: E402

import_utils.is_torchvision_available()
from transformers import image_utils as _  # noqa: E402,F401

from . import import_stubs  # noqa: E402

import_stubs.install(
    "IPython", "torchvision", "tvm_ffi", "sentencepiece", "compressed_tensors", "gguf"
)
import torch  # noqa: E402

torch.set_num_threads(1)
from figures import clock, freeze, percentile, summary  # noqa: E402
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator  # noqa: E402
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator  # noqa: E402
from sglang.srt.mem_cache.base_prefix_cache import (  # noqa: E402
    EvictParams,
    InsertParams,
    MatchPrefixParams,
)
from sglang.srt.mem_cache.cache_init_params import CacheInitParams  # noqa: E402
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey  # noqa: E402

if TREE != "py":
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

NAME = f"sglang/{TREE}/page{PAGE}"
VERSION = importlib.metadata.version("sglang")


class _DevicePool:
    """Stands for the device's pool: the allocators only keep a handle."""


class _Rows:
    def __init__(self, count: int, width: int) -> None:
        self.size, self.max_context_len = count, width
        self.req_to_token = torch.zeros((count, width), dtype=torch.int32)

    def write(self, index: Any, values: Any) -> None:
        self.req_to_token[index] = values


class Engine:
    """A bare prefix cache: `admit` and `finish` instead of a step loop."""

    name, block_size, cache_level = NAME, PAGE, True

    def __init__(self, pool_tokens: int, max_running: int, max_len: int) -> None:
        self._rows = _Rows(max_running + 1, max_len + 1)
        size = pool_tokens // PAGE * PAGE
        if PAGE == 1:
            self._slots: Any = TokenToKVPoolAllocator(
                size, torch.float16, "cpu", _DevicePool(), False
            )
        else:
            self._slots = PagedTokenToKVPoolAllocator(
                size, PAGE, torch.float16, "cpu", _DevicePool(), False
            )
        params = CacheInitParams(
            disable=False,
            req_to_token_pool=self._rows,
            token_to_kv_pool_allocator=self._slots,
            page_size=PAGE,
        )
        self._live: dict[str, Any] = {}
        if TREE == "py":
            self._tree: Any = RadixCache(params)
            return
        params.tree_components = (ComponentType.FULL,)
        self._tree = UnifiedRadixCache(params)
        core = type(self._tree.tree_core).__name__
        assert (TREE == "rust") == ("ust" in core), (TREE, core)

    def idle(self) -> None:
        """Nothing is left over."""

    def _take(self, count: int) -> Any:
        count = (count + PAGE - 1) // PAGE * PAGE
        short = count - self._slots.available_size()
        if short > 0:
            self._tree.evict(EvictParams(num_tokens=short))
        slots = self._slots.alloc(count)
        assert slots is not None, "pool exhausted"
        return slots

    @staticmethod
    def native(tokens: list[int]) -> array[int]:
        """What Req.origin_input_ids holds."""
        return array("q", tokens)

    def admit(self, rid: str, prompt: array[int], num_outputs: int) -> int:
        """Match, lock, evict if short, allocate, write the slot row; returns cached tokens."""
        ids = prompt[:]  # match_kv_cache() builds origin + output
        count = len(ids)
        match = self._tree.match_prefix(MatchPrefixParams(key=RadixKey(ids, limit=count - 1)))
        lock = self._tree.lock(match.last_device_node)
        hit: int = match.device_prefix_len
        row = self._rows.req_to_token[0]
        if hit:
            row[:hit] = self._tree.path_device_indices(match.last_device_node)
        new = self._take(count - hit)
        row[hit : hit + len(new)] = new
        self._live[rid] = (ids, lock, hit, count, hit + len(new))
        return hit

    def finish(self, rid: str, outputs: list[int]) -> None:
        """Slots for the outputs, insert the whole sequence, free duplicates and tail, unlock."""
        ids, lock, hit, count, capacity = self._live.pop(rid)
        row = self._rows.req_to_token[0]
        end = count + len(outputs) - 1  # the last sampled token has no KV
        if end > capacity:
            new = self._take(end - capacity)
            row[capacity : capacity + len(new)] = new
            capacity += len(new)
        ids.extend(outputs[:-1])
        key = RadixKey(ids).page_aligned(PAGE)
        aligned = len(key)
        values = row[:aligned].to(torch.int64, copy=True)
        inserted = self._tree.insert(InsertParams(key=key, value=values, prev_prefix_len=hit))
        if TREE == "py" and inserted.prefix_len > hit:
            self._slots.free(values[hit : inserted.prefix_len])
        if capacity > aligned:
            self._slots.free(row[aligned:capacity].to(torch.int64))
        self._tree.unlock(lock)

    def w1(self, n: int, ctx: int, steps: int, warm: int) -> dict[str, Any]:
        """Slots for one more token of `n` rows a step, no request state."""
        lengths = torch.tensor([ctx + (i * 7) % 64 for i in range(n)], dtype=torch.int64)
        table, slots, times = self._rows.req_to_token, torch.arange(n), []
        for i in range(n):
            new = self._take(int(lengths[i]))
            table[i, : len(new)] = new
        freeze()
        for k in range(steps + warm):
            start = clock()
            lengths = lengths + 1
            if PAGE == 1:
                new = self._take(n)
            else:
                last = table[slots, lengths - 2].to(torch.int64)
                new = self._slots.alloc_decode(lengths, lengths, last)
            table[slots, lengths - 1] = new.to(torch.int32)
            if k >= warm:
                times.append(clock() - start)
        return {
            "N": n,
            "ctx": ctx,
            "step_us": summary(times),
            "ns_per_req": round(percentile(times, 0.5) / n * 1e9, 1),
            "note": "KV slots only",
        }

    def w3(self, prompt: list[int]) -> dict[str, Any]:
        """One long prompt, cold and then warm, in one go."""
        figures: dict[str, Any] = {}
        for phase, tokens in (("cold", prompt), ("warm", prompt + [7] * 100)):
            ids = self.native(tokens)
            start = clock()
            hit = self.admit(phase, ids, 8)
            admitted = clock()
            self.finish(phase, [9] * 8)
            figures[phase + "_first_plan_ms"] = (admitted - start) * 1e3
            figures[phase + "_all_chunks_ms"] = (admitted - start) * 1e3
            figures[phase + "_free_ms"] = (clock() - admitted) * 1e3
            figures[phase + "_cached"] = hit
        return figures


def make(pool_tokens: int, max_running: int, token_budget: int, max_len: int) -> Engine:
    """Build the cache."""
    return Engine(pool_tokens, max_running, max_len)
