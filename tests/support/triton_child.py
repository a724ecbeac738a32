"""The child of `triton_targets`: compiles, and prints lines of JSON.

Of a family a line before each (offer, target), so that who kills the process is known, and one
behind it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import traceback
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import triton
from tests.support import triton_real_shapes
from tests.support.portable import computed_by, dtypes_of, offers_of
from tests.support.triton_targets import REAL_SHAPES, TARGETS, Launch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from tokenspeed.ops.backends import implementation
from tokenspeed.ops.compare import cases_within, copied
from tokenspeed_sdk import Domain, KernelOffer

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenspeed_sdk import Case, Offer, Operator

SEED = 7


class AbsentGpu:
    """Triton's driver of a GPU that is not there: enough of it to compile."""

    def __init__(self, name: str) -> None:
        self._target = GPUTarget(*TARGETS[name])
        self._index = list(TARGETS).index(name)  # triton keeps what it compiled by device

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return self._index

    def get_current_stream(self, device: int) -> int:
        return 0

    @property
    def utils(self) -> AbsentGpu:
        return self

    def get_device_properties(self, device: int) -> dict[str, int]:
        kib = {"cuda": 227, "hip": 64}[self._target.backend]
        return {"multiprocessor_count": 132, "max_shared_mem": kib << 10}


class Spy:
    """Compiles instead of launching, and keeps what came out."""

    def __init__(self) -> None:
        self.compiled: dict[str, Any] = {}

    def install(self) -> None:
        """Replace launches in this process."""
        run, compiled = JITFunction.run, self.compiled

        def compile_only(function: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            kernel = run(function, *args, grid=grid, warmup=True, **kwargs)
            kernel = kernel.result() if hasattr(kernel, "result") else kernel
            compiled[kernel.hash] = kernel
            return kernel

        JITFunction.run = compile_only


def run_offer(slot: str, offer: Offer | KernelOffer, dtype: str) -> None:
    """Call an offer over all cases that it takes; its results mean nothing."""
    for operator in computed_by(slot, offer):
        for case in cases_within(operator, Domain(dtype, offer.requires, SEED)):
            _call(operator, offer, case)


def _call(operator: Operator, offer: Offer | KernelOffer, case: Case) -> None:
    args, options = copied(case.args, "cpu"), copied(dict(case.options), "cpu")
    if operator.name == "sampling.distribution":
        load: Callable[..., Any] = offer.load
        logits_RV, batch = args
        sampler = load(device=torch.device("cpu"), vocab_size=logits_RV.shape[1])
        sampler.sample(logits_RV, batch)
        return
    result = implementation(operator, offer)(*args, **options)
    for call in case.calls:
        result(*copied(call, "cpu"))


def fill_new_tensors() -> None:
    """New tensors hold zeros here: no kernel writes them, and some are indices."""
    torch.empty, torch.empty_like = torch.zeros, torch.zeros_like
    torch.Tensor.new_empty = torch.Tensor.new_zeros  # type: ignore[method-assign]
    torch.empty_strided = lambda *args, **options: empty_strided(*args, **options).zero_()


empty_strided = torch.empty_strided


def compile_one(
    kernel: str,
    signature: dict[str, str],
    constants: dict[str, Any],
    options: dict[str, int],
    target: GPUTarget,
) -> Any:
    """Compile one variant."""
    module, _, name = kernel.partition(":")
    function = getattr(__import__(module, fromlist=[name]), name)
    types = {word: signature.get(word, "constexpr") for word in function.arg_names}
    places = {(function.arg_names.index(word),): value for word, value in constants.items()}
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, word in enumerate(function.arg_names)
        if types[word].startswith(("*", "i32", "i64"))
    }
    source = ASTSource(function, types, places, aligned)
    return triton.compile(source, target=target, options=options)


def launch_of(kernel: Any, target: str) -> Launch:
    """Describe a compiled variant."""
    source, metadata = kernel.src, kernel.metadata
    names = source.fn.arg_names
    is_ptx = "ptx" in kernel.asm
    registers, spilled = _of_cubin(kernel.asm["cubin"]) if is_ptx else _of_amdgcn(kernel.asm)
    return Launch(
        kernel=metadata.name,
        target=target,
        signature={name: str(kind) for name, kind in source.signature.items()},
        constants={names[place[0]]: _plain(value) for place, value in source.constants.items()},
        shared_bytes=metadata.shared,
        registers=registers,
        spilled=spilled,
        asm=kernel.asm["ptx" if is_ptx else "amdgcn"],
    )


def _plain(value: Any) -> object:
    return value if isinstance(value, (int, float, str, bool, type(None))) else str(value)


def _of_cubin(cubin: bytes) -> tuple[int, int]:
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "-res-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    numbers = {name: int(number) for name, number in re.findall(r"\b([A-Z]+):(\d+)", text)}
    return numbers["REG"], numbers["STACK"] + numbers["LOCAL"]


def _of_amdgcn(asm: dict[str, Any]) -> tuple[int, int]:
    text = asm["amdgcn"]

    def number(name: str) -> int:
        return max(map(int, re.findall(rf"\.{name}:\s+(\d+)", text)), default=0)

    return number("vgpr_count"), number("vgpr_spill_count")


def compile_family(family: str) -> None:
    """Run every offer of a family, and its calls in real shapes, for every target."""
    spy = Spy()
    spy.install()
    fill_new_tensors()
    calls: dict[str, Callable[[], None]] = {
        offer.name: partial(run_offer, slot, offer, dtype_of(offer))
        for slot, offer in offers_of(family)
    }
    if hasattr(triton_real_shapes, family):
        calls[REAL_SHAPES] = getattr(triton_real_shapes, family)
    for name, call in calls.items():
        for target in TARGETS:
            triton.runtime.driver.set_active(AbsentGpu(target))
            spy.compiled.clear()
            key = {"offer": name, "target": target}
            print(json.dumps(key), flush=True)
            try:
                call()
                launches = [asdict(launch_of(kernel, target)) for kernel in spy.compiled.values()]
                print(json.dumps({**key, "launches": launches}), flush=True)
            except Exception:
                print(json.dumps({**key, "error": traceback.format_exc()[-4000:]}), flush=True)


def dtype_of(offer: Offer | KernelOffer) -> str:
    """Return the dtype that an offer is compiled in: the one that models come in, if it can."""
    dtypes = dtypes_of(offer)
    return "bfloat16" if "bfloat16" in dtypes else dtypes[0]


def main() -> None:
    """Compile what the argument says."""
    work = json.loads(sys.argv[1])
    if "family" in work:
        compile_family(work["family"])
        return
    target = work.pop("target")
    kernel = compile_one(**work, target=GPUTarget(*TARGETS[target]))
    print(json.dumps(asdict(launch_of(kernel, target))))


if __name__ == "__main__":
    main()
