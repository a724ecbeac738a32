"""Which torch functions model and layer files may call themselves, why, and who calls which.

Everything else is computation and goes through an operator (docs/plugins/operators.md).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tests.support.source_tree import ROOT
from torch.overrides import TorchFunctionMode, resolve_name

FOLDERS = tuple(ROOT / "core" / "tokenspeed" / room for room in ("layers", "models"))
TORCH = Path(torch.__file__).parent

VIEW = "a view: nothing is computed or copied"
FACT = "a fact of the tensor"
MOVE = "numbers are moved, none is computed"
CAST = "logits are float32 by the contract of the model slot"

IN_A_STEP: Mapping[str, str] = {
    "torch.Tensor.view": VIEW,
    "torch.Tensor.flatten": VIEW,
    "torch.Tensor.split_with_sizes": VIEW,
    "torch.Tensor.unbind": VIEW,
    "torch.Tensor.__getitem__": VIEW,
    "torch.Tensor.shape.__get__": FACT,
    "torch.Tensor.__len__": FACT,
    "torch.cat": MOVE + ": products of one input whose weights are stored in different formats; "
    "the two parts of a latent, which is cached as one",
    "torch.Tensor.float": CAST,
}
"""What a forward pass may do beside operators."""

_ONCE = "once, while loading: "
WHILE_LOADING: Mapping[str, str] = {
    **IN_A_STEP,
    "torch.Tensor.to": _ONCE + "weights go to their device and dtype",
    "torch.Tensor.contiguous": _ONCE + "weights are laid out",
    "torch.stack": _ONCE + "tensors of experts are stacked",
    "torch.zeros": _ONCE + "counters of choices begin",
    "torch.tensor": "while loading, and between steps when experts have moved: tables of slots",
    "torch.Tensor.mT.__get__": VIEW,
    "torch.Tensor.is_floating_point": FACT,
    "torch.Tensor.dtype.__get__": FACT,
}
"""What building a model and loading its weights may do."""

TABLE_FILE = "core/tokenspeed/layers/rotary.py"
"""The table of cosines and sines is a function of config.json alone and made once, on the host in
float32, as the models' own code makes it: what is called here is free."""


class CallsOfModels(TorchFunctionMode):
    """Notes each torch function that a layer or model file calls itself, and where."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, set[str]] = {}

    def beyond(self, allowed: Mapping[str, str], *, free_file: str = "") -> dict[str, set[str]]:
        """Return the calls that are not allowed, but for those of one file."""
        places = {
            name: {place for place in found if not (free_file and place.startswith(free_file))}
            for name, found in self.seen.items()
            if name not in allowed
        }
        return {name: found for name, found in places.items() if found}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note the caller, and go on."""
        caller = _caller()
        if caller is not None:
            name = str(resolve_name(func) or func)
            self.seen.setdefault(name, set()).add(caller)
        return func(*args, **(kwargs or {}))


def _caller() -> str | None:
    """Return file and line of the nearest frame outside torch, if it is a layer's or model's."""
    frame = sys._getframe(2)
    while frame.f_back is not None and Path(frame.f_code.co_filename).is_relative_to(TORCH):
        frame = frame.f_back
    file = Path(frame.f_code.co_filename)
    if not any(file.is_relative_to(folder) for folder in FOLDERS):
        return None
    return f"{file.relative_to(ROOT)}:{frame.f_lineno}"
