"""Joins a group of ranks: the chosen communicator alone, or several that share the sizes.

Those that pass as well as the chosen one, in its band, are measured against it (message_sizes.py);
a pin leaves one, and then nothing is measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.contracts.kernel import Band
from tokenspeed.engine.ranks.message_sizes import SIZES, agreed_times, table_of, told
from tokenspeed.engine.ranks.sized_communicator import SizedCommunicator
from tokenspeed.errors import EngineError, TokenSpeedError
from tokenspeed.kernels.rules import AUTO
from tokenspeed.log import LOGGER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from tokenspeed.contracts.binding import Decision, RegisteredOffer
    from tokenspeed.contracts.communicator import Communicator
    from tokenspeed.contracts.device import DeviceRuntime
    from tokenspeed.engine.ranks.group_seat import GroupSeat
    from tokenspeed.kernels.evidence import EvidenceFile


def rivals_of(
    record: Mapping[str, Any], offers: Sequence[RegisteredOffer[Any]]
) -> list[RegisteredOffer[Any]]:
    """Return the offers that share the sizes with the winner, by name; [] beside a pin."""
    if record["pin"] != AUTO:
        return []
    won = next(entry for entry in record["candidates"] if entry["verdict"] == "won")
    if Band[won["band"]] < Band.PORTABLE:
        return []
    able = {
        entry["offer"]
        for entry in record["candidates"]
        if not entry["clauses"] and entry["band"] == won["band"] and entry is not won
    }
    return sorted((item for item in offers if item.pin in able), key=lambda item: item.pin)


def shared(
    decision: Decision,
    chosen: Communicator,
    rivals: Sequence[RegisteredOffer[Any]],
    load: Callable[[RegisteredOffer[Any]], Communicator],
    *,
    seat: GroupSeat,
    runtime: DeviceRuntime,
    dtype: torch.dtype,
    file: EvidenceFile | None,
) -> Communicator:
    """Return a communicator of the chosen one and its rivals; every rank calls it alike.

    Args:
        load: joins a rival's group; one that fails on any rank fails on all of them.
        file: where times of this device lie; None: they are not kept.
    Raises:
        EngineError: the chosen one's group broke.
    """
    import torch

    joined, record = {decision.winner.pin: chosen}, decision.record
    device = runtime.torch_device()
    for rival in rivals:
        communicator = _joined(rival, load, record)
        ready = torch.tensor([float(communicator is None)], device=device)
        if float(chosen.all_reduce(ready, reduction="max")) == 0.0 and communicator is not None:
            joined[rival.pin] = communicator
        elif communicator is not None:
            communicator.close()
    if len(joined) == 1:
        return chosen
    x = torch.ones(SIZES[-1] // dtype.itemsize, dtype=dtype, device=device)
    group = f"{seat.size} ranks, {seat.hosts} hosts, {str(dtype).removeprefix('torch.')}"
    times = agreed_times(joined, chosen, group, file, x, runtime.synchronize)
    _note(record, times)
    return SizedCommunicator(decision.winner.pin, joined, table_of(times))


def _joined(
    rival: RegisteredOffer[Any],
    load: Callable[[RegisteredOffer[Any]], Communicator],
    record: Mapping[str, Any],
) -> Communicator | None:
    try:
        return load(rival)
    except (TokenSpeedError, EngineError) as error:
        LOGGER.warning("%s does not take part in this group: %s", rival.pin, error)
        _entry(record, rival.pin)["reason"] = f"it could not join: {error}"
        return None


def _note(record: Mapping[str, Any], times: dict[str, dict[str, float]]) -> None:
    """Write into the decision's record who serves which sizes, and why."""
    lines = told(times)
    for line in lines:
        LOGGER.info("communicator: %s", line)
    assert isinstance(record, dict), "records are made here"
    record["sizes"] = lines
    for pin in {pin for by_pin in times.values() for pin in by_pin} - {record["winner"]}:
        _entry(record, pin)["reason"] = "it serves the sizes at which it was measured to be faster"


def _entry(record: Mapping[str, Any], pin: str) -> dict[str, Any]:
    entry: dict[str, Any] = next(entry for entry in record["candidates"] if entry["offer"] == pin)
    return entry
