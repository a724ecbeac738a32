"""On a GPU: memory is what it says, kernels for any device agree there, models answer the same.

Run by `make gpu-check` on a machine that has one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.support.engine_parts import Job, build_parts
from tests.support.served_checkpoints import byte_tokenizer
from tests.support.tiny_checkpoints import (
    HYBRID_SPECS,
    LATENT_SPECS,
    MOE_SPECS,
    SPECS,
    make_checkpoint,
    make_prompts,
)

from tokenspeed import LLM, SamplingParams
from tokenspeed.contracts.kernel import Domain, Operator
from tokenspeed.kernels.judging import declared_traits
from tokenspeed.ops import OPERATORS
from tokenspeed.ops.backends import outcomes
from tokenspeed.plugins import load_plugins
from tokenspeed_nvidia.device import PAGE_BYTES, CudaRuntime
from tokenspeed_sdk import CapacityError

if TYPE_CHECKING:
    from pathlib import Path

    from tokenspeed.contracts.binding import RegisteredOffer

pytestmark = pytest.mark.needs_nvidia

NUM_TOKENS = 32
PROMPTS = make_prompts([1, 7, 33, 90], shared=20)
REGISTRY = load_plugins(("reference",), role="engine")


def offers_of(operator: Operator) -> tuple[RegisteredOffer[Any], ...]:
    if operator.slot == "operator":
        return REGISTRY.kernel_offers(operator.name)
    return REGISTRY.offers(operator.slot)


ANY_DEVICE: list[Any] = [
    pytest.param(operator, registered.offer, dtype, id=f"{operator.name}-{registered.pin}-{dtype}")
    for operator in OPERATORS.values()
    for registered in offers_of(operator)
    for dtype in ("float32", "bfloat16")
    if operator.slot != "communicator" and "*" in registered.offer.requires["device"]
]


@pytest.fixture(scope="module")
def runtime() -> CudaRuntime:
    return CudaRuntime()


def test_the_driver_and_torch_see_one_device(runtime: CudaRuntime) -> None:
    assert runtime.facts.name == torch.cuda.get_device_name(0)
    assert runtime.facts.count == torch.cuda.device_count()
    major, minor = torch.cuda.get_device_capability(0)
    assert runtime.facts.arch.rstrip("a") == f"sm_{major}{minor}"


def test_an_arena_is_zeroed_aligned_and_taken_from_what_is_free(runtime: CudaRuntime) -> None:
    free, num_bytes = runtime.free_memory_bytes(), 3 * 2**30 + 12345
    arena = runtime.allocate_arena(num_bytes)
    assert arena.numel() == num_bytes
    assert arena.device == runtime.torch_device()
    assert arena.data_ptr() % PAGE_BYTES == 0
    assert not arena.any()
    assert free - runtime.free_memory_bytes() >= num_bytes
    arena.fill_(7)
    runtime.synchronize()
    with pytest.raises(CapacityError, match=r"KV arena: .* GiB wanted, .* are free"):
        runtime.allocate_arena(free)
    del arena
    assert runtime.free_memory_bytes() >= free - 2**28  # kernels were loaded meanwhile


def test_staging_is_pinned_and_copies_both_ways(runtime: CudaRuntime) -> None:
    host = runtime.allocate_pinned(1 << 20)
    assert host.is_pinned()
    assert host.data_ptr() % PAGE_BYTES == 0
    host.copy_(torch.arange(1 << 20).to(torch.uint8))
    device = host.to(runtime.torch_device(), non_blocking=True)
    back = torch.empty_like(host, pin_memory=True).copy_(device, non_blocking=True)
    runtime.synchronize()
    assert back.equal(host)


@pytest.mark.parametrize(("operator", "offer", "dtype"), ANY_DEVICE)
def test_kernels_for_any_device_agree_with_the_definition(
    runtime: CudaRuntime, operator: Operator, offer: Any, dtype: str
) -> None:
    domain = Domain(dtype, declared_traits(offer))
    found = list(outcomes(operator, offer, domain, device=runtime.torch_device()))
    assert len(found) > 1
    assert [outcome for outcome in found if not outcome.agrees] == []


@pytest.mark.parametrize("name", [*SPECS, *MOE_SPECS, *LATENT_SPECS, *HYBRID_SPECS])
def test_greedy_tokens_equal_those_of_the_cpu(
    tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    folder: Path = tmp_path_factory.getbasetemp() / "checkpoints"
    path = make_checkpoint(name, folder)
    byte_tokenizer().save(str(path / "tokenizer.json"))
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS)
    wanted = build_parts(path).run([Job(prompt, params) for prompt in PROMPTS]).tokens
    settings: dict[str, Any] = {"plugins": "nvidia,reference", "dtype": "float32", "kv_gib": 0.05}
    with LLM(str(path), block_tokens=16, max_step_tokens=48, **settings) as llm:
        assert llm.engine.binding_plan.slots["device"].winner.pin == "nvidia/cuda"
        for _ in range(2):  # the second time from the prefix cache
            outputs = llm.generate(PROMPTS, params)
            assert [list(output.token_ids) for output in outputs] == wanted


def test_a_host_tier_is_staged_through_pinned_memory(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder: Path = tmp_path_factory.getbasetemp() / "checkpoints"
    path = make_checkpoint("llama", folder)
    byte_tokenizer().save(str(path / "tokenizer.json"))
    wanted = build_parts(path).run([Job(prompt) for prompt in PROMPTS]).tokens
    with LLM(
        str(path),
        plugins="nvidia,reference",
        dtype="float32",
        block_tokens=16,
        kv_gib=0.00012,
        host_kv_gib=0.01,
    ) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=len(wanted[0]))
        for _ in range(3):
            outputs = [llm.generate([prompt], params)[0] for prompt in PROMPTS]
            assert [list(output.token_ids) for output in outputs] == wanted
        assert llm.stats().loaded_tokens > 0
