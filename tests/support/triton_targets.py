"""Compiles Triton kernels ahead of time for GPUs that need not be here, in a child process.

In a child, because a wrong operation may kill the compiler's process, and because kernels are
interpreted in this one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

TARGETS = (("cuda", 90, 32), ("hip", "gfx942", 64))
"""(backend, architecture, threads of a warp) of the GPUs that portable kernels are compiled for."""
SHARED_BYTES = {"cuda": 227 << 10, "hip": 64 << 10}
"""Most shared memory of a program."""


def compile_for(
    kernel: str,
    signature: Mapping[str, str],
    constants: Mapping[str, Any],
    target: tuple[str, int | str, int],
    **options: int,
) -> dict[str, Any]:
    """Compile a kernel.

    Args:
        kernel: "module:name" of a jit function.
        signature: argument -> type such as "*bf16" or "i32"; constants may be left out,
            and what the kernel does not take is ignored. A type that ends in ":16" is divisible by
            16, as pointers always are.
        constants: argument -> compile-time value.
        options: num_warps, num_stages.
    Returns:
        Stage -> text ("ptx", "amdgcn", "ttgir"), and "metadata" with what the launch needs.
    """
    given = json.dumps([kernel, dict(signature), dict(constants), target, options])
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    child = subprocess.run(
        [sys.executable, __file__, given],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
        check=False,
    )
    assert child.returncode == 0, f"{kernel} for {target}: {child.stderr[-3000:]}"
    compiled: dict[str, Any] = json.loads(child.stdout)
    return compiled


def _compile(
    kernel: str,
    signature: dict[str, str],
    constants: dict[str, Any],
    target: list[Any],
    options: dict[str, int],
) -> dict[str, Any]:
    from importlib import import_module

    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module, _, name = kernel.partition(":")
    function = getattr(import_module(module), name)
    places = {argument: place for place, argument in enumerate(function.arg_names)}
    types = {
        argument: "constexpr" if argument in constants else signature[argument].removesuffix(":16")
        for argument in function.arg_names
    }
    divisible = [
        argument
        for argument, text in signature.items()
        if argument in places
        and argument not in constants
        and (text.startswith("*") or text.endswith(":16"))
    ]
    source = ASTSource(
        function,
        types,
        {(places[argument],): value for argument, value in constants.items() if argument in places},
        {(places[argument],): [["tt.divisibility", 16]] for argument in divisible},
    )
    compiled = triton.compile(source, target=GPUTarget(*target), options=options)
    texts = {stage: text for stage, text in compiled.asm.items() if isinstance(text, str)}
    metadata = compiled.metadata._asdict()
    return {**texts, "metadata": {"shared": metadata["shared"], "num_warps": metadata["num_warps"]}}


if __name__ == "__main__":
    print(json.dumps(_compile(*json.loads(sys.argv[1]))))
