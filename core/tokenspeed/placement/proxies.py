"""Proxies: what a traced model gets in place of tensors, their number, the step and backends.

They know sizes and a dtype, make views, and refuse everything else with the line that asked for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from tokenspeed.placement.layout import TOKENS
from tokenspeed.placement.views import VIEWS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenspeed.placement.recorder import GraphRecorder
    from tokenspeed.placement.sizes import Parts

_OPERATOR = "bind an operator (docs/plugins/operators.md) or use a view: " + ", ".join(
    sorted(VIEWS)
)
_BRANCH = "let config.json alone decide, while the model is built"
_TOKENS = "give shape[0] to view as it is, or -1"
_INSTEAD = {
    "__len__": "write x.shape[0]",
    "__bool__": _BRANCH,
    "__eq__": _BRANCH,
    "__ne__": _BRANCH,
    "__lt__": _BRANCH,
    "__le__": _BRANCH,
    "__gt__": _BRANCH,
    "__ge__": _BRANCH,
    "__iter__": "use unbind",
    "reshape": "use view",
    "split": "use split_with_sizes",
    "chunk": "use split_with_sizes",
}
"""What a model wrote -> what it may write."""
_REFUSED = (
    *("__len__", "__bool__", "__iter__", "__int__", "__float__", "__index__", "__contains__"),
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__setitem__", "__neg__"),
    *("__sub__", "__mul__", "__truediv__", "__floordiv__", "__mod__", "__pow__", "__matmul__"),
    *("__rsub__", "__rmul__", "__rtruediv__", "__rmatmul__", "__iadd__", "__isub__", "__imul__"),
    *("__and__", "__or__", "__xor__", "__invert__", "__abs__", "__itruediv__", "__rpow__"),
)
_KEYWORDS = {
    "cat": ("dim",),
    "flatten": ("start_dim", "end_dim"),
    "split_with_sizes": ("split_sizes", "dim"),
    "to": ("dtype",),
    "transpose": ("dim0", "dim1"),
    "unbind": ("dim",),
    "unsqueeze": ("dim",),
}
"""View -> torch's names of its constants."""


class Tokens:
    """The number of tokens of a step, or of rows: known when a step runs."""

    __slots__ = ("_recorder",)

    def __init__(self, recorder: GraphRecorder) -> None:
        self._recorder = recorder

    def __repr__(self) -> str:
        return "T"

    def __getattr__(self, name: str) -> NoReturn:
        self._recorder.refuse(f"the number of tokens is asked for {name}", _TOKENS)


class Proxy:
    """A tensor of the graph.

    Args:
        number, parts, dtype_name: of its Value.
    """

    __slots__ = ("_recorder", "dtype_name", "number", "parts")

    def __init__(self, recorder: GraphRecorder, number: int, parts: Parts, dtype_name: str) -> None:
        self._recorder = recorder
        self.number = number
        self.parts = parts
        self.dtype_name = dtype_name

    def __repr__(self) -> str:
        sizes = " x ".join("T" if dim[0] == TOKENS else str(sum(dim)) for dim in self.parts)
        return f"a tensor of {sizes}"

    @property
    def shape(self) -> tuple[Any, ...]:
        """Sizes; the first one is no number."""
        return tuple(Tokens(self._recorder) if dim[0] == TOKENS else sum(dim) for dim in self.parts)

    @property
    def ndim(self) -> int:
        """How many dimensions there are."""
        return len(self.parts)

    @property
    def dtype(self) -> Any:
        """Torch's dtype."""
        import torch

        return getattr(torch, self.dtype_name)

    @property
    def mT(self) -> Any:  # noqa: N802 - torch's name
        """The last two dimensions exchanged."""
        return self._recorder.view("mT", (self,), ())

    def __getitem__(self, index: Any) -> Any:
        return self._recorder.view("getitem", (self,), (index,))

    def __add__(self, other: Any) -> Any:
        return self._recorder.add(self, other)

    __radd__ = __add__

    def __getattr__(self, name: str) -> Any:
        if name not in VIEWS:
            self._recorder.refuse(f"{self!r} is asked for {name}", _INSTEAD.get(name, _OPERATOR))
        return lambda *args, **kwargs: self._recorder.view(
            name, (self,), (*args, *_by_keyword(name, len(args), kwargs))
        )

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Take views that are written as functions, such as torch.cat."""
        name, first = getattr(func, "__name__", str(func)), args[0] if args else None
        tensors = tuple(first) if isinstance(first, list | tuple) else (first,)
        recorder = _recorder_of((*tensors, *args[1:]))
        if name not in VIEWS or not all(isinstance(tensor, cls) for tensor in tensors):
            recorder.refuse(f"torch.{name} is called", _INSTEAD.get(name, _OPERATOR))
        constants = (*args[1:], *_by_keyword(name, len(args) - 1, kwargs or {}))
        return recorder.view(name, tensors, constants)


class TracedStep:
    """Stands for the step's ForwardContext.

    Args:
        positions_T: a graph's input.
    """

    __slots__ = ("_recorder", "positions_T")

    def __init__(self, positions_T: Proxy, recorder: GraphRecorder) -> None:
        self.positions_T = positions_T
        self._recorder = recorder

    def __getattr__(self, name: str) -> NoReturn:
        self._recorder.refuse(
            f"the step is asked for {name}",
            "let a layer with a cache ask for it, whose calls the recorder notes "
            "(docs/plugins/add-a-model.md)",
        )


class TracedBackend:
    """Stands for backends of attention and experts: layers keep its methods and call none."""

    __slots__ = ("_recorder",)
    fuses_routing = False

    def __init__(self, recorder: GraphRecorder) -> None:
        self._recorder = recorder

    def plan(self, *_: Any, **__: Any) -> Any:
        """Refuse."""
        self._recorder.refuse(
            "a backend is called by a layer that has no call noted",
            "let the layer have the recorder note its calls (docs/plugins/add-a-model.md)",
        )

    write = attend = prepare = forward = plan


def _recorder_of(arguments: Sequence[Any]) -> GraphRecorder:
    return next(item._recorder for item in arguments if isinstance(item, Proxy))


def _by_keyword(name: str, given: int, keywords: dict[str, Any]) -> tuple[Any, ...]:
    """Return keyword arguments behind the `given` first ones, by position."""
    names = _KEYWORDS.get(name, ())[given:]
    if not keywords.keys() <= set(names[: len(keywords)]):
        raise TypeError(f"{name} takes {', '.join(names) or 'no keywords'}, not {keywords}")
    return tuple(keywords[key] for key in names[: len(keywords)])


def _refused(name: str) -> Any:
    def refuse(self: Any, *_: Any) -> None:
        instead = _TOKENS if isinstance(self, Tokens) else _INSTEAD.get(name, _OPERATOR)
        self._recorder.refuse(f"{self!r} is asked for {name}", instead)

    return refuse


for _name in _REFUSED:
    setattr(Proxy, _name, _refused(_name))
    setattr(Tokens, _name, _refused(_name))
for _name in ("__add__", "__radd__"):
    setattr(Tokens, _name, _refused(_name))
