"""Steps with prompts as graphs in pieces: attention is called, what lies between is replayed.

The graphs of a size are captured in the second step that needs it, whose tensors show what every
piece is given. That step is computed as ever beside it, so a size that cannot be captured costs it
time and nothing else. Legend: T query tokens, B tokens of a size.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenspeed.errors import CapacityError
from tokenspeed.executor.graphs import GraphCounts
from tokenspeed.executor.pieces import cut
from tokenspeed.log import LOGGER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    import torch

    from tokenspeed.contracts.device import DeviceGraph
    from tokenspeed.contracts.model import ForwardContext
    from tokenspeed.executor.pieces import Part
    from tokenspeed.executor.program import ProgramRunner

    Registers = list[Any]

CAPTURED_IN_USE = 2
"""A size is captured in its second step: one that comes once is not worth the time."""
SIZES = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 640, 768, 896, 1024)
"""Up to 256 tokens a layer's time is that of reading its weights, and padding is free."""


def piece_sizes(most: int) -> tuple[int, ...]:
    """Return the sizes in tokens, smallest first; the last one is `most`."""
    return (*(size for size in SIZES if size < most), most)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A captured part.

    Args:
        fills: (register, its slot) of what called parts made.
        gives: (register, its slot) of what is read behind it.
    """

    graph: DeviceGraph
    fills: tuple[tuple[int, torch.Tensor], ...]
    gives: tuple[tuple[int, torch.Tensor], ...]


class _Slots:
    """Memory at the ends of pieces, used again by all sizes and as soon as nobody reads it."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._made: defaultdict[object, list[torch.Tensor]] = defaultdict(list)
        self._free: dict[object, list[torch.Tensor]] = {}
        self.num_bytes = 0

    def begin(self) -> None:
        """Give all memory to the next size: sizes are replayed one at a time."""
        self._free = {key: list(buffers) for key, buffers in self._made.items()}

    def acquire(self, like: torch.Tensor) -> torch.Tensor:
        """Return (max_tokens, ...) for a value of (T, ...), of which a size uses the first rows."""
        key = (like.shape[1:], like.dtype)
        if free := self._free.get(key):
            return free.pop()
        buffer = like.new_zeros((self._max_tokens, *like.shape[1:]))
        self._made[key].append(buffer)
        self.num_bytes += buffer.nbytes
        return buffer

    def release(self, buffer: torch.Tensor) -> None:
        """Take back what no later part reads."""
        self._free.setdefault((buffer.shape[1:], buffer.dtype), []).append(buffer)


class PiecewiseForward:
    """The forward of one rank.

    Args:
        runner: of the model's program on one rank.
        plain: the model's own forward, for steps that are not replayed.
        sizes: in tokens, smallest first; a larger step is launched kernel by kernel.
        max_bytes: that graphs and their ends may keep.
        capture: of the DeviceRuntime.
    """

    def __init__(
        self,
        runner: ProgramRunner,
        plain: Callable[[torch.Tensor, ForwardContext], torch.Tensor],
        *,
        sizes: Sequence[int],
        max_bytes: int,
        capture: Callable[[Callable[[], None]], DeviceGraph],
    ) -> None:
        self._runner = runner
        self._plain = plain
        self._sizes_B = tuple(sizes)
        self._max_bytes = max_bytes
        self._capture_graph = capture
        self._parts = cut(runner.program)
        self._last_part = _last_reading(self._parts, runner.program.outputs)
        self._slots = _Slots(sizes[-1])
        self._graph_bytes = 0
        self._uses: defaultdict[int, int] = defaultdict(int)
        self._captured: dict[int, Mapping[int, _Piece]] = {}
        self.counts = GraphCounts()

    @property
    def num_pieces(self) -> int:
        """Graphs of a size; 0: nothing lies between the calls that read the step."""
        return sum(part.is_piece for part in self._parts)

    def __call__(self, token_ids_T: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """Return hidden states (T, D), as the model's own forward would."""
        num_tokens = len(token_ids_T)
        place = bisect_left(self._sizes_B, num_tokens)
        if place == len(self._sizes_B):
            return self._plain(token_ids_T, context)
        size = self._sizes_B[place]
        pieces = self._captured.get(size)
        if pieces is not None:
            self.counts.replayed += 1
            return self._replay(pieces, size, token_ids_T, context)
        self._uses[size] += 1
        if self._uses[size] == CAPTURED_IN_USE:
            return self._capture(size, token_ids_T, context)
        return self._plain(token_ids_T, context)

    def _replay(
        self,
        pieces: Mapping[int, _Piece],
        size: int,
        token_ids_T: torch.Tensor,
        context: ForwardContext,
    ) -> torch.Tensor:
        num_tokens = len(token_ids_T)
        registers = self._runner.registers(token_ids_T, context.positions_T)
        counts = self._runner.counts(len(token_ids_T))
        for index, part in enumerate(self._parts):
            piece = pieces.get(index)
            if piece is None:
                self._runner.run_part(part.start, part.stop, registers, context, counts)
                continue
            for register, slot in piece.fills:
                _fill(slot[:size], registers[register], num_tokens)
            piece.graph.replay()
            for register, slot in piece.gives:
                registers[register] = slot[:num_tokens]
            for register in part.reads:
                if self._last_part[register] == index:
                    registers[register] = None
        # The next step writes to the slots again, perhaps before this one's states were read.
        hidden_TD: torch.Tensor = registers[self._runner.program.outputs[0]]
        return hidden_TD.clone()

    def _capture(
        self, size: int, token_ids_T: torch.Tensor, context: ForwardContext
    ) -> torch.Tensor:
        """Capture a size's pieces beside a step that is launched as ever."""
        pieces: dict[int, _Piece] = {}
        slots: dict[int, torch.Tensor] = {}
        self._slots.begin()
        registers = self._runner.registers(token_ids_T, context.positions_T)
        counts = self._runner.counts(len(token_ids_T))
        for index, part in enumerate(self._parts):
            given = {register: registers[register] for register in part.reads}
            self._runner.run_part(part.start, part.stop, registers, context, counts)
            if not part.is_piece or size in self.counts.failed:
                continue
            made = {register: registers[register] for register in part.writes}
            try:
                pieces[index] = self._piece(part, size, given, made, slots)
                self._check_bytes(pieces)
            except Exception as error:  # the step goes on without graphs, as all others of its size
                self._fail(size, str(error) or repr(error))
            self._release(index, slots)
        if size not in self.counts.failed:
            self._captured[size] = pieces
            self.counts.captured = tuple(sorted(self._captured))
            self._graph_bytes += _graph_bytes(pieces)
        self.counts.num_bytes = self._graph_bytes + self._slots.num_bytes
        hidden_TD: torch.Tensor = registers[self._runner.program.outputs[0]]
        return hidden_TD

    def _piece(
        self,
        part: Part,
        size: int,
        given: Mapping[int, torch.Tensor],
        made: Mapping[int, torch.Tensor],
        slots: dict[int, torch.Tensor],
    ) -> _Piece:
        fills = []
        for register, value in given.items():
            if register not in slots:  # else a piece before leaves it there
                slots[register] = self._slots.acquire(value)
                _fill(slots[register][:size], value, len(value))
                fills.append((register, slots[register]))
        for register, value in made.items():
            slots[register] = self._slots.acquire(value)

        def work() -> None:
            registers = self._runner.registers()
            for register in given:
                registers[register] = slots_B[register]
            self._runner.run_part(part.start, part.stop, registers, None, counts)
            for register in made:
                slots_B[register].copy_(registers[register])

        counts = self._runner.counts(size)
        slots_B = {register: slots[register][:size] for register in (*given, *made)}
        graph = self._capture_graph(work)
        return _Piece(graph, tuple(fills), tuple((register, slots[register]) for register in made))

    def _release(self, index: int, slots: dict[int, torch.Tensor]) -> None:
        """Take back the slots that no part behind one reads."""
        for register in [item for item in slots if self._last_part.get(item, index) <= index]:
            self._slots.release(slots.pop(register))

    def _check_bytes(self, pieces: Mapping[int, _Piece]) -> None:
        num_bytes = self._graph_bytes + _graph_bytes(pieces) + self._slots.num_bytes
        if num_bytes > self._max_bytes:
            raise CapacityError(
                f"its graphs bring the memory of pieces to {num_bytes / 2**20:.1f} MiB and decode "
                f"steps leave {self._max_bytes / 2**20:.1f}; raise graph_memory_mib"
            )

    def _fail(self, size: int, cause: str) -> None:
        self.counts.failed[size] = cause
        LOGGER.warning(
            "steps with prompts padded to %s tokens are launched kernel by kernel, which is "
            "slower: %s",
            size,
            cause,
        )


def _fill(slot_B: torch.Tensor, value_T: torch.Tensor, num_tokens: int) -> None:
    """Write a step's values, and zeros behind them: what lay there may be no number."""
    slot_B[:num_tokens].copy_(value_T)
    if num_tokens < len(slot_B):
        slot_B[num_tokens:].zero_()


def _graph_bytes(pieces: Mapping[int, _Piece]) -> int:
    return sum(piece.graph.num_bytes for piece in pieces.values())


def _last_reading(parts: Sequence[Part], outputs: Sequence[int]) -> dict[int, int]:
    """Return by register the last part that reads it; results are read behind all."""
    last = {register: index for index, part in enumerate(parts) for register in part.reads}
    return last | dict.fromkeys(outputs, len(parts))
