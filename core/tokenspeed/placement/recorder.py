"""Notes the calls of a traced model as nodes of a graph.

Operators and layers of the traced model are bound to callables of the recorder, and proxies come
to it for their views.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from tokenspeed.errors import PlacementError
from tokenspeed.placement.callers import Callers
from tokenspeed.placement.graph import Graph, Kind, Node, Ref, StepArgument, Value
from tokenspeed.placement.layout import TOKENS
from tokenspeed.placement.notation import parse
from tokenspeed.placement.proxies import Proxy, Tokens, TracedStep
from tokenspeed.placement.sizes import result_parts
from tokenspeed.placement.views import view_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tokenspeed.contracts.kernel import Operator
    from tokenspeed.contracts.placement import ParallelGroup
    from tokenspeed.placement.sizes import Parts

ADD = "add"
"""Target of x + y: a view by its kind, with a rule."""
_ADD_RULE = "~..., ~... -> ..."
_SEVERAL = ("split_with_sizes", "unbind")
"""Views that give a tuple, of one tensor as well."""


class _Held:
    """Stands for the tensors that layers hold."""


class GraphRecorder:
    """Satisfies `contracts.placement.Recorder` and `contracts.kernel.KernelBinder`."""

    held: Any = _Held()

    def __init__(self) -> None:
        self.modules: list[object] = []
        self._paths: Mapping[int, str] = {}
        self._callers = Callers()
        self._values: list[Value] = []
        self._nodes: list[Node] = []
        self._inputs: list[int] = []

    def name_layers(self, paths: Mapping[int, str], layers: Sequence[object]) -> None:
        """Tell the paths of modules, by id, and which objects are the decoder's layers."""
        self._paths = paths
        self._callers.name_layers(layers)

    def input(self, features: Sequence[int], dtype: str, name: str) -> Any:
        """Add an input of (tokens, *features) to the graph."""
        proxy = self._proxy(((TOKENS,), *((size,) for size in features)), dtype, name)
        self._inputs.append(proxy.number)
        return proxy

    def graph(self, *results: Any) -> Graph:
        """Return what was noted since the last graph, and begin anew.

        Raises:
            PlacementError: a result is no tensor of the graph.
        """
        for result in results:
            if not isinstance(result, Proxy):
                self.refuse(f"the model returns {result!r}", "return a tensor")
        outputs = tuple(result.number for result in results)
        graph = Graph(tuple(self._values), tuple(self._nodes), tuple(self._inputs), outputs)
        self._values, self._nodes, self._inputs = [], [], []
        self._callers.forget()
        return graph

    def bind(self, operator: Operator, **traits: object) -> Callable[..., Any]:
        """Return a callable that notes a call of the operator."""

        def record(*arguments: Any, **options: Any) -> Any:
            if not operator.placement:
                self.refuse(
                    f"operator {operator.name} is called, which says nothing of its placement",
                    "declare it with `placement=` (contracts/placement.py has the notation)",
                )
            where, layer = self._callers.find()
            node = Node(
                Kind.OPERATOR,
                operator.name,
                self._inputs_of(arguments),
                (),
                options,
                parse(operator.placement),
                operator=operator,
                traits=traits,
                layer=layer,
                where=where,
            )
            name = operator.name if layer < 0 else f"layers.{layer}.{operator.name}"
            return self._record(node, name, operator.result_dtypes)

        return record

    def module(
        self,
        layer: object,
        rule: str,
        *,
        method: str = "",
        weights: Sequence[Sequence[Sequence[int]]] = (),
        spread: Mapping[str, ParallelGroup] | None = None,
        units: Mapping[str, Sequence[int]] | None = None,
        dtypes: Sequence[str] = (),
        operator: Operator | None = None,
        exchanged: str = "",
    ) -> Callable[..., Any]:
        """Return a callable that notes a call of `layer`; see the contract."""
        self.modules.append(layer)
        parsed = parse(rule)
        named = {path.partition(".")[0] for _, path in parsed.options}
        sizes = tuple(tuple(map(tuple, weight)) for weight in weights)
        given = {letter: tuple(count) for letter, count in (units or {}).items()}

        def record(*arguments: Any, **options: Any) -> Any:
            where, index = self._callers.find(skipped=1)
            node = Node(
                Kind.MODULE,
                self._path(layer, method),
                self._inputs_of(arguments),
                (),
                {name: value for name, value in options.items() if name in named},
                parsed,
                sizes,
                spread or {},
                given,
                operator,
                layer=index,
                where=where,
                exchanged=exchanged,
            )
            return self._record(node, node.target, dtypes)

        return record

    def view(self, target: str, tensors: Sequence[Proxy], constants: Sequence[Any]) -> Any:
        """Note a view and return its result, or a tuple of them."""
        where, layer = self._callers.find()
        known = tuple(map(_plain, constants))
        try:
            parts = view_parts(target, [tensor.parts for tensor in tensors], known)
        except PlacementError as error:
            raise PlacementError(f"{where}: {error}") from None
        inputs = (*(Ref(tensor.number) for tensor in tensors), *known)
        node = Node(Kind.VIEW, target, inputs, (), layer=layer, where=where)
        name = self._values[tensors[0].number].name
        results = self._results(node, name, parts, [_dtype_after(target, known, tensors[0])])
        return results if target in _SEVERAL else results[0]

    def add(self, one: Proxy, other: Any) -> Any:
        """Note a sum of two tensors of one shape."""
        if not isinstance(other, Proxy) or one.parts != other.parts:
            self.refuse(f"{one!r} + {other!r} is asked for", "add tensors of one shape")
        where, layer = self._callers.find()
        inputs = (Ref(one.number), Ref(other.number))
        node = Node(Kind.VIEW, ADD, inputs, (), rule=parse(_ADD_RULE), layer=layer, where=where)
        return self._record(node, self._values[one.number].name, ())

    def refuse(self, what: str, instead: str) -> NoReturn:
        """Raise a PlacementError that names the line of the model's text."""
        raise PlacementError(
            f"{self._callers.find()[0]}: {what} while the model is traced, where tensors have "
            f"sizes and no numbers; operators, layers and views are allowed; {instead}"
        )

    def _record(self, node: Node, name: str, dtypes: Sequence[str]) -> Any:
        assert node.rule is not None, "views of one tensor are noted otherwise"
        arguments = [
            self._values[given.number].parts if isinstance(given, Ref) else None
            for given in node.inputs
            if not isinstance(given, StepArgument)
        ]
        try:
            parts = result_parts(node.rule, (*arguments, *node.weights), node.options)
        except PlacementError as error:
            raise PlacementError(f"{node.where}: {node.target}: {error}") from None
        node = replace(node, units=_units(node, arguments))
        results = self._results(node, name, parts, dtypes)
        return results[0] if len(results) == 1 else results

    def _results(
        self, node: Node, name: str, parts: Sequence[Parts], dtypes: Sequence[str]
    ) -> tuple[Proxy, ...]:
        """Add a node and its results.

        Args:
            dtypes: of the results, one for all views'; "" or none: the first argument's.
        """
        first = next(given for given in node.inputs if isinstance(given, Ref))
        usual = self._values[first.number].dtype
        if node.rule is None:
            usual, dtypes = dtypes[0], ()
        results = []
        for index, own in enumerate(parts):
            dtype = dtypes[index] if index < len(dtypes) else ""
            own_name = name if len(parts) == 1 else f"{name}[{index}]"
            results.append(self._proxy(own, dtype or usual, own_name))
        self._nodes.append(replace(node, outputs=tuple(result.number for result in results)))
        return tuple(results)

    def _proxy(self, parts: Parts, dtype: str, name: str) -> Proxy:
        value = Value(len(self._values), parts, dtype, name)
        self._values.append(value)
        return Proxy(self, value.number, parts, dtype)

    def _path(self, layer: object, method: str) -> str:
        if id(layer) not in self._paths:
            self.refuse(
                f"a {type(layer).__name__} is called that no attribute of the model leads to",
                "keep it as an attribute of a block, in a list or in a dict",
            )
        path = self._paths[id(layer)]
        return f"{path}.{method}" if method else path

    def _inputs_of(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(self._input_of(item) for item in arguments if item is not self.held)

    def _input_of(self, item: Any) -> Any:
        if isinstance(item, Proxy):
            return Ref(item.number)
        if isinstance(item, TracedStep):
            return StepArgument()
        if hasattr(item, "__torch_function__"):
            self.refuse(
                "a tensor is an argument that no layer holds",
                "let a layer hold it, which has the recorder note its calls",
            )
        return _plain(item)


def _units(node: Node, arguments: Sequence[Parts | None]) -> Mapping[str, tuple[int, ...]]:
    """Return the node's units; of letters that others share (K<N) each element is one."""
    assert node.rule is not None, "views have no units"
    units = dict(node.units)
    for low in {low for low, _ in node.rule.shared} - units.keys():
        for pattern, parts in zip(node.rule.inputs, arguments, strict=False):
            for dim, sizes in zip(pattern.dims if pattern else (), parts or (), strict=False):
                if dim.letter == low and sizes[0] != TOKENS:
                    units[low] = sizes
    return units


def _plain(constant: Any) -> Any:
    """Return a constant of a call with TOKENS for the number of tokens, and tuples for lists."""
    if isinstance(constant, Tokens):
        return TOKENS
    if isinstance(constant, list | tuple):
        return tuple(_plain(item) for item in constant)
    return constant


def _dtype_after(target: str, constants: Sequence[Any], tensor: Proxy) -> str:
    if target == "float":
        return "float32"
    dtypes = [str(item) for item in constants if str(item).startswith("torch.")]
    return dtypes[0].removeprefix("torch.") if target == "to" and dtypes else tensor.dtype_name
