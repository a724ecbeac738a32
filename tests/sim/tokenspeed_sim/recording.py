"""Graphs of a device that is host memory: what was computed once is computed again, in place.

Every call that reaches torch's operators is written down with its very tensors; a replay makes the
calls again and puts their results into the memory of the first ones. Numbers that Python had in its
hands are what they were. As on a device with real graphs, nothing may wait for a result on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tokenspeed_sdk import EngineError

HOST_READS = frozenset(
    {
        "__array__",
        "__bool__",
        "__float__",
        "__index__",
        "__int__",
        "cpu",
        "item",
        "masked_select",
        "nonzero",
        "numpy",
        "tensor",
        "tolist",
        "unique",
        "unique_consecutive",
    }
)
"""Functions that wait for the device, copy from memory that is not pinned, or size their result by
what a tensor holds."""

HOST_SIZED = frozenset(
    {"masked_select", "nonzero", "_unique2", "unique_dim", "equal", "repeat_interleave.Tensor"}
    | {"repeat_interleave.self_Tensor"}
)
"""Operators of torch that do."""


class RecordedGraph:
    """DeviceGraph.

    Args:
        calls: of torch's operators, each with its results.
    """

    def __init__(self, calls: list[_Call]) -> None:
        self._calls = calls
        self.num_bytes = sum(_new_bytes(calls))

    def replay(self) -> None:
        """Make the calls again."""
        for call in self._calls:
            call.repeat()


class _Call:
    """One call: what was called with what, and the tensors that it made."""

    def __init__(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        self._call = (function, args, kwargs)
        self.results = [] if function._schema.is_mutable else _tensors(result)

    def repeat(self) -> None:
        function, args, kwargs = self._call
        again = function(*args, **kwargs)
        for result, value in zip(self.results, _tensors(again), strict=False):
            result.copy_(value)


class _Recorder(TorchDispatchMode):
    """Writes down the calls that compute; views are there already."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.partition("::")[2]
        if {name, f"{name}.{func._overloadname}"} & HOST_SIZED or _indexes_by_mask(name, args):
            raise _refusal(name)
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if any(not isinstance(leaf, torch.Tensor | None) for leaf in tree_leaves(result)):
            raise _refusal(name)
        if func._schema.is_mutable or not _is_view(result, (args, kwargs)):
            self.calls.append(_Call(func, args, kwargs, result))
        return result


class _NoHostReads(TorchFunctionMode):
    """Refuses what reaches no operator: a tensor of the host is read where it lies."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in HOST_READS:
            raise _refusal(name)
        return func(*args, **(kwargs or {}))


def record(work: Callable[[], None]) -> RecordedGraph:
    """Run `work` once as it is, once more written down.

    Raises:
        EngineError: it reads what a tensor holds.
    """
    work()
    recorder = _Recorder()
    with _NoHostReads(), recorder:
        work()
    return RecordedGraph(recorder.calls)


def _refusal(name: str) -> EngineError:
    return EngineError(
        f"a graph cannot be recorded: {name} needs a tensor's content while nothing has computed "
        "it yet; use operators of fixed shapes, and numbers that stay on the device"
    )


def _indexes_by_mask(name: str, args: Any) -> bool:
    """Say whether a mask of truths stands for its places, of which there may be any number."""
    is_indexing = name in ("index", "index_put", "index_put_", "_index_put_impl_")
    return is_indexing and any(index.dtype == torch.bool for index in _tensors(args[1]))


def _is_view(result: Any, inputs: Any) -> bool:
    """Say whether all results lie in the memory of what was given."""
    given = {tensor.untyped_storage().data_ptr() for tensor in _tensors(inputs)}
    return all(tensor.untyped_storage().data_ptr() in given for tensor in _tensors(result))


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _new_bytes(calls: list[_Call]) -> Iterator[int]:
    """Yield the size of each memory that the calls made."""
    seen = set()
    for call in calls:
        for tensor in call.results:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in seen:
                seen.add(storage.data_ptr())
                yield storage.nbytes()
