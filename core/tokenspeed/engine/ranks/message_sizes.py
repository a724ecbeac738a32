"""Which communicator serves a message of how many bytes: measured once a group, then kept on disk.

Every rank takes part in measuring; what rank 0 measured counts, and every rank compares the digest
of the table that it got. Times lie where `--tune` keeps its own: by device and versions, and in the
shape's text by ranks, hosts and dtype.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import statistics
import time
from collections import defaultdict
from typing import TYPE_CHECKING

from tokenspeed.errors import EngineError
from tokenspeed.log import LOGGER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from tokenspeed.contracts.communicator import Communicator
    from tokenspeed.kernels.evidence import EvidenceFile

SIZES = (1 << 10, 1 << 13, 1 << 16, 1 << 18, 1 << 20, 1 << 23)
"""Bytes of this rank's tensor."""
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter")
ROUNDS = 7
CALLS = 8
"""Calls of one timed batch."""
BUSY_BYTES, BUSY_PASSES = 1 << 28, 10
"""What a device computes while the host calls a batch."""
SLOT = "communicator"
Times = dict[str, dict[str, float]]
"""A shape's text -> PLUGIN/NAME -> seconds a call."""
Table = dict[str, list[tuple[int, str]]]
"""Operation -> (most bytes, PLUGIN/NAME), smallest first; 0: any."""


def shape_of(operation: str, num_bytes: int, group: str) -> str:
    """Return the text under which a size's times are kept.

    Args:
        group: what is alike for all its sizes, such as "2 ranks, 1 hosts, bfloat16".
    """
    return f"{SLOT}.{operation}|{group}|{num_bytes}"


def agreed_times(
    communicators: Mapping[str, Communicator],
    base: Communicator,
    group: str,
    file: EvidenceFile | None,
    x: torch.Tensor,
    synchronize: Callable[[], None],
) -> Times:
    """Return the group's times, the same on every rank: kept ones, or measured now by all.

    Args:
        communicators: PLUGIN/NAME -> this rank's end, in the same order on every rank.
        base: one of them, by which the ranks agree.
        file: of this device; rank 0 reads and writes it. None: nothing is kept.
        x: (max SIZES bytes,) of the dtype that is reduced, device.
        synchronize: waits for the device.
    Raises:
        EngineError: a rank has another table.
    """
    kept = _kept(file, group, communicators) if base.rank == 0 and file is not None else {}
    times = _agreed(base, kept, x.device)
    if times:
        return times
    own = _measured(communicators, base, group, x, synchronize)
    times = _agreed(base, own, x.device)
    if base.rank == 0 and file is not None:
        file.shapes.update(times)
        if problem := file.save():
            LOGGER.warning("times of communicators are not kept: %s", problem)
    return times


def table_of(times: Times) -> Table:
    """Return who is fastest up to which size; between two sizes lies their geometric mean."""
    by_operation: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for shape, by_pin in times.items():
        operation, num_bytes = _operation_of(shape), _bytes_of(shape)
        by_operation[operation].append((num_bytes, min(by_pin, key=lambda pin: by_pin[pin])))
    table: Table = {}
    for operation, fastest in by_operation.items():
        fastest.sort()
        ends = [math.isqrt(a[0] * b[0]) for a, b in itertools.pairwise(fastest)]
        steps = zip([*ends, 0], (pin for _, pin in fastest), strict=True)
        table[operation] = _joined(list(steps))
    return table


def told(times: Times) -> list[str]:
    """Return a line an operation: who serves which sizes, and in how many microseconds."""
    lines = []
    for operation, steps in table_of(times).items():
        parts = [f"{_size(most)} by {pin}" for most, pin in steps]
        measured = "; ".join(
            f"{_bytes_of(shape)} bytes: "
            + ", ".join(f"{pin} {s * 1e6:.1f} us" for pin, s in sorted(by_pin.items()))
            for shape, by_pin in sorted(times.items(), key=lambda item: _bytes_of(item[0]))
            if _operation_of(shape) == operation
        )
        lines.append(f"{operation} {', '.join(parts)} (measured: {measured})")
    return lines


def kept_notes(file: EvidenceFile) -> list[str]:
    """Return what was measured on this device, a line a group and operation."""
    groups: dict[str, Times] = defaultdict(dict)
    for shape, by_pin in file.shapes.items():
        if shape.startswith(f"{SLOT}."):
            groups[shape.split("|")[1]][shape] = by_pin
    return [
        f"communicator of {group}: {line}"
        for group, times in sorted(groups.items())
        for line in told(times)
    ]


def _kept(file: EvidenceFile, group: str, communicators: Mapping[str, Communicator]) -> Times:
    """Return the kept times if they are of just these communicators, else none."""
    wanted = {shape_of(operation, n, group) for operation in OPERATIONS for n in SIZES}
    times = {shape: file.shapes[shape] for shape in wanted & set(file.shapes)}
    complete = len(times) == len(wanted)
    is_sound = all(set(by_pin) == set(communicators) for by_pin in times.values())
    return dict(sorted(times.items())) if complete and is_sound else {}


def _measured(
    communicators: Mapping[str, Communicator],
    base: Communicator,
    group: str,
    x: torch.Tensor,
    synchronize: Callable[[], None],
) -> Times:
    """Time every operation at every size, one candidate after another in each round."""
    times: Times = {}
    for operation in OPERATIONS:
        for num_bytes in SIZES:
            elements = num_bytes // x.element_size() // base.size * base.size
            part = x[:elements].view(base.size, -1)
            batches = {
                pin: _batch(communicator, operation, part)
                for pin, communicator in communicators.items()
            }
            samples = _interleaved(base, batches, x.device, synchronize)
            times[shape_of(operation, num_bytes, group)] = {
                pin: statistics.median(found) for pin, found in samples.items()
            }
    return dict(sorted(times.items()))


def _batch(communicator: Communicator, operation: str, x: torch.Tensor) -> Callable[[], None]:
    call = getattr(communicator, operation)

    def run() -> None:
        for _ in range(CALLS):
            call(x)

    return run


def _interleaved(
    base: Communicator,
    batches: Mapping[str, Callable[[], None]],
    device: torch.device,
    synchronize: Callable[[], None],
) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {pin: [] for pin in batches}
    for number in range(ROUNDS + 1):
        for pin, batch in batches.items():
            synchronize()
            base.barrier()
            seconds = _seconds(batch, device, synchronize)
            if number:  # the first connects and compiles
                samples[pin].append(seconds / CALLS)
    return samples


def _seconds(
    batch: Callable[[], None], device: torch.device, synchronize: Callable[[], None]
) -> float:
    """Return the time of a batch: on a device the device's own, whatever the host takes to call."""
    import torch

    if device.type == "cpu":
        started = time.perf_counter()
        batch()
        return time.perf_counter() - started
    first, last = (torch.Event(device=device, enable_timing=True) for _ in range(2))
    busy = torch.zeros(BUSY_BYTES // 4, device=device)
    for _ in range(BUSY_PASSES):  # meanwhile the host gets ahead
        busy.add_(1.0)
    first.record()
    batch()
    last.record()
    synchronize()
    return float(first.elapsed_time(last)) / 1e3


def _agreed(base: Communicator, own: Times, device: torch.device) -> Times:
    """Return rank 0's times on every rank.

    Raises:
        EngineError: a rank got others; names it.
    """
    import torch

    text = json.dumps(own, sort_keys=True).encode()
    length = base.broadcast(torch.tensor([len(text)], dtype=torch.int64, device=device))
    data = torch.zeros(int(length), dtype=torch.uint8)
    if base.rank == 0:
        data[:] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    got = bytes(base.broadcast(data.to(device)).cpu().tolist())
    digest = int.from_bytes(hashlib.sha256(got).digest()[:7], "big")
    digests = base.all_gather(torch.tensor([digest], dtype=torch.int64, device=device)).tolist()
    others = [rank for rank, other in enumerate(digests) if other != digests[0]]
    if others:
        raise EngineError(
            f"the table of communicators differs on rank {', '.join(map(str, others))} from rank "
            "0's; the group's broadcast is damaged; restart the engine, or pin a communicator"
        )
    times: Times = json.loads(got)
    return times


def _joined(steps: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Join neighbours that the same communicator serves."""
    return [
        step
        for step, after in zip(steps, [*steps[1:], (0, "")], strict=True)
        if step[1] != after[1]
    ]


def _operation_of(shape: str) -> str:
    return shape.partition("|")[0].removeprefix(f"{SLOT}.")


def _bytes_of(shape: str) -> int:
    return int(shape.rpartition("|")[2])


def _size(most_bytes: int) -> str:
    return f"up to {most_bytes} bytes" if most_bytes else "of any size above"
