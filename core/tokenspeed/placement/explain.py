"""What the compiler made of a model, as data for people: layers, moves, bytes, times, memory.

Equal layers are told once. Bytes are those that one rank sends in a step, microseconds those of the
cost model; nothing is measured here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import groupby
from math import prod
from operator import itemgetter
from time import perf_counter
from typing import TYPE_CHECKING

from tokenspeed.placement.compiler import compile_graph
from tokenspeed.placement.cost import ELEMENT_BYTES, local_elements
from tokenspeed.placement.fitting import fitting_told
from tokenspeed.placement.graph import Kind
from tokenspeed.placement.local import local_cache_groups
from tokenspeed.placement.program import Call, Move, Passed, Reduced
from tokenspeed.placement.shards import RankShards
from tokenspeed.placement.stages import layers_of_stages
from tokenspeed.placement.text import layout_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tokenspeed.contracts.model import CacheGroup
    from tokenspeed.placement.cost import CostModel
    from tokenspeed.placement.layout import Layout
    from tokenspeed.placement.mesh import Mesh
    from tokenspeed.placement.program import Instruction, Program
    from tokenspeed.placement.trace import Graphs


EXCHANGE = "exchange"
"""Kind of a row: a module and the collectives around it."""


@dataclass(frozen=True, slots=True)
class Row:
    """One instruction.

    Args:
        kind: of a node or of a collective; "pass" to the next stage; "exchange" where tokens go to
            the ranks of their experts and back.
        name: of the node, below its layer; of what is moved.
        takes, gives: layouts.
        group: over which ranks, and how many.
        sent_bytes, time_us: of one rank in a step.
        beside: label of the branch that may run beside others.
    """

    kind: str
    name: str
    takes: str
    gives: str
    group: str = ""
    sent_bytes: float = 0.0
    time_us: float = 0.0
    beside: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """What is computed alike: equal layers, or what stands around them.

    Args:
        layers: indices of the decoder layers that are so; none for what is no layer.
        sent_bytes, time_us: of one of them.
    """

    title: str
    layers: tuple[int, ...]
    rows: tuple[Row, ...]
    sent_bytes: float
    time_us: float


@dataclass(frozen=True, slots=True)
class StageMemory:
    """What each rank of a pipeline stage holds.

    Args:
        ranks: the first and the last.
        layers: the first and the last.
        cache_token_bytes: of one token, all layers of the stage.
        cache_sequence_bytes: of the state of one sequence, all layers of the stage.
    """

    stage: int
    ranks: tuple[int, int]
    layers: tuple[int, int]
    weight_bytes: int
    cache_token_bytes: int
    cache_sequence_bytes: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """A compiled model.

    Args:
        axes: (name, ranks) of a stage's grid, the slowest first.
        groups: (group, its axes).
        sent_bytes, time_us: of a step, over all layers and stages, logits included.
        digests: of each stage's two programs.
        gathered_us: of a step in which experts take all tokens, gathered, in place of exchanging
            them; None: none are exchanged.
    """

    tokens: int
    world: int
    axes: tuple[tuple[str, int], ...]
    groups: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...]
    stages: tuple[StageMemory, ...]
    sent_bytes: float
    time_us: float
    compile_ms: float
    digests: tuple[tuple[str, str], ...]
    gathered_us: float | None = None


def explain(
    graphs: Graphs,
    mesh: Mesh,
    cost: CostModel,
    tokens: int,
    cache_groups: Sequence[CacheGroup],
    *,
    dtype: str = "bfloat16",
    is_tied: bool = False,
    roomy: Callable[[], Graphs] | None = None,
) -> Explanation:
    """Compile a model for a mesh and say what came out.

    Args:
        graphs: of the model with its vocabulary padded for the mesh.
        tokens: of a step, all ranks together; as many rows have logits, as in a step of decodes.
        cache_groups: of the whole model.
        dtype: torch's name, of weights and of cache fields that name none.
        roomy: see `fitting_told`; None: numbers that pad otherwise are not told.
        is_tied: the head has the embedding's weight.
    Raises:
        PlacementError, ConfigError: as `compile_graph`.
    """
    start = perf_counter()
    with fitting_told(roomy or (lambda: graphs), mesh.degrees, cost, tokens):
        forward = compile_graph(graphs.forward, mesh, cost, tokens)
        logits = compile_graph(graphs.logits, mesh, cost, tokens)
    compile_ms = (perf_counter() - start) * 1e3
    teller = _Teller(graphs, mesh, cost, tokens)
    sections = (*teller.sections(forward), *teller.sections(logits, logits=True))
    counts = [len(section.layers) or 1 for section in sections]
    return Explanation(
        tokens,
        mesh.world,
        tuple((axis.name, axis.size) for axis in mesh.axes),
        tuple((group.value, "".join(axes)) for group, axes in mesh.groups.items()),
        sections,
        tuple(
            _memory(mesh, index, (forward[index], logits[index]), cache_groups, dtype, is_tied)
            for index in range(len(forward))
        ),
        sum(section.sent_bytes * n for section, n in zip(sections, counts, strict=True)),
        sum(section.time_us * n for section, n in zip(sections, counts, strict=True)),
        compile_ms,
        tuple((one.digest, two.digest) for one, two in zip(forward, logits, strict=True)),
        _gathered_us(teller, forward, logits),
    )


def _gathered_us(
    teller: _Teller, forward: Sequence[Program], logits: Sequence[Program]
) -> float | None:
    """Return what a step takes without exchanges; None: it has none."""
    calls = (item for program in forward for item in program.instructions)
    if not any(isinstance(item, Call) and item.exchange for item in calls):
        return None
    graph, tokens = teller.graphs.forward, teller.tokens
    gathered = compile_graph(graph, teller.mesh, teller.cost, tokens, exchanges=False)
    sections = (*teller.sections(gathered), *teller.sections(logits, logits=True))
    return sum(section.time_us * (len(section.layers) or 1) for section in sections)


@dataclass(frozen=True, slots=True)
class _Teller:
    graphs: Graphs
    mesh: Mesh
    cost: CostModel
    tokens: int

    def sections(self, programs: Iterable[Program], *, logits: bool = False) -> list[Section]:
        """Return the sections of all stages, equal layers of one stage or several as one."""
        found: dict[object, Section] = {}
        for program in programs:
            names = self._names(program, logits=logits)
            runs = [
                (layer, tuple(self._row(item, names) for _, item in pairs))
                for layer, pairs in groupby(_with_layers(program.instructions), itemgetter(0))
            ]
            for index, (layer, rows) in enumerate(runs):
                key = rows if layer >= 0 else (program.stage, index)
                known = found[key].layers if key in found else ()
                layers = (*known, layer) if layer >= 0 else ()
                title = _title(layers) if layers else _place(runs, index)
                found[key] = Section(
                    title,
                    layers,
                    rows,
                    sum(row.sent_bytes for row in rows),
                    sum(row.time_us for row in rows),
                )
        return list(found.values())

    def _names(self, program: Program, *, logits: bool) -> dict[int, str]:
        """Return register -> name of the node that made it."""
        graph = self.graphs.logits if logits else self.graphs.forward
        made = {
            register: item.node.target
            for item in program.instructions
            if isinstance(item, Call)
            for register in item.outputs
        }
        inputs = zip(program.inputs, (graph.values[n].name for n in graph.inputs), strict=False)
        moved = {i.target: i.source for i in program.instructions if isinstance(i, Move)}
        named = {**dict(inputs), **made}
        for target, source in moved.items():
            named[target] = named.get(source, "")
        return named

    def _row(self, item: Instruction, names: dict[int, str]) -> Row:
        match item:
            case Call():
                return self._exchange_row(item) if item.exchange else _call_row(item)
            case Move():
                return self._move_row(item, names)
            case Reduced():
                moved = self._move_row(item.move, names)
                name = _short(item.call.node.target)
                return Row("reduce + norm", name, moved.takes, _texts(item.call.output_layouts),
                           moved.group, moved.sent_bytes, moved.time_us)  # fmt: skip
            case Passed():
                return self._pass_row(item, names)

    def _move_row(self, move: Move, names: dict[int, str]) -> Row:
        return Row(
            move.collective.value,
            _short(names.get(move.source, "")),
            layout_text(move.before),
            layout_text(move.after),
            self._group(move.axes),
            move.bytes_per_token * self.tokens,
            self.cost.time_us(self.mesh, move, self.tokens),
        )

    def _exchange_row(self, call: Call) -> Row:
        assert call.exchange is not None
        return replace(
            _call_row(call),
            kind=EXCHANGE,
            group=self._group(call.exchange.axes),
            sent_bytes=call.exchange.bytes_per_token * self.tokens,
            time_us=call.exchange.time_us,
        )

    def _pass_row(self, item: Passed, names: dict[int, str]) -> Row:
        texts = _texts(item.layouts)
        graph = self.graphs.forward
        dtype = graph.values[graph.outputs[0]].dtype
        num_bytes = sum(local_elements(x, self.mesh) for x in item.layouts) * self.tokens
        num_bytes *= ELEMENT_BYTES[dtype]
        time_us = self.cost.pass_time_us(num_bytes)
        name = f"stage {item.stage} to {item.stage + 1}"
        return Row("pass", name, texts, texts, "1 rank to 1", num_bytes, time_us)

    def _group(self, axes: tuple[str, ...]) -> str:
        """Return the name of a group of ranks: one group, several beside each other, or axes."""
        ranks = self.mesh.size(axes)
        rest, names = [*axes], []
        for group, own in sorted(self.mesh.groups.items(), key=lambda item: -len(item[1])):
            if own and {*own} <= {*rest}:
                names.append(group.value)
                rest = [axis for axis in rest if axis not in own]
        return f"{' '.join(sorted(names) + rest)}, {ranks} ranks"


def _with_layers(instructions: Sequence[Instruction]) -> Iterator[tuple[int, Instruction]]:
    """Yield each instruction with its layer: a move belongs to the call after it."""
    layer, reversed_pairs = -1, []
    for item in reversed(instructions):
        if isinstance(item, Call | Reduced):
            node = item.node if isinstance(item, Call) else item.call.node
            layer = node.layer
        elif isinstance(item, Passed):
            layer = -1
        reversed_pairs.append((layer, item))
    yield from reversed(reversed_pairs)


def _call_row(call: Call) -> Row:
    node = call.node
    kind = "view" if node.kind is Kind.VIEW else node.kind.value
    name = _short(node.target)
    takes, gives = _texts(call.input_layouts), _texts(call.output_layouts)
    return Row(kind, name, takes, gives, beside=_short(call.beside))


def _texts(layouts: Iterable[Layout]) -> str:
    return " ".join(map(layout_text, layouts))


def _short(target: str) -> str:
    return re.sub(r"^layers\.\d+\.", "", target)


def _place(runs: Sequence[tuple[int, object]], index: int) -> str:
    """Return where instructions of no layer stand."""
    if index + 1 < len(runs):
        return f"before layer {runs[index + 1][0]}"
    return f"after layer {runs[index - 1][0]}" if index else "logits"


def _title(layers: tuple[int, ...]) -> str:
    runs: list[list[int]] = []
    for layer in layers:
        if runs and runs[-1][-1] == layer - 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return f"{'layer' if len(layers) == 1 else 'layers'} {', '.join(texts)}"


def _memory(
    mesh: Mesh,
    stage: int,
    programs: tuple[Program, Program],
    groups: Sequence[CacheGroup],
    dtype: str,
    is_tied: bool,
) -> StageMemory:
    per_stage = mesh.degrees.stage_ranks
    first = (mesh.degrees.pp - 1 - stage) * per_stage
    num_layers = 1 + max(layer for group in groups for layer in group.layers)
    layers = layers_of_stages(num_layers, mesh.degrees.pp)[stage]
    local = local_cache_groups(groups, RankShards(mesh, first, layers))
    of_state = {True: 0, False: 0}
    for group in local:
        size = sum(
            prod(field.shape) * ELEMENT_BYTES[field.dtype or dtype] for field in group.fields
        )
        of_state[group.kind == "state"] += size * len(group.layers)
    held = [programs[0]] if is_tied and mesh.degrees.pp == 1 else programs
    elements = sum(_weights(item, mesh) for program in held for item in program.instructions)
    weights = elements * ELEMENT_BYTES[dtype]
    ranks, span = (first, first + per_stage - 1), (layers[0], layers[-1])
    return StageMemory(stage, ranks, span, int(weights), of_state[False], of_state[True])


def _weights(item: Instruction, mesh: Mesh) -> float:
    """Return the elements of a call's weights on one rank."""
    call = item.call if isinstance(item, Reduced) else item
    if not isinstance(call, Call):
        return 0.0
    return sum(local_elements(layout, mesh) for layout in call.weight_layouts)
