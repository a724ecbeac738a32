"""What rank 0 and a worker tell each other beside the plans: msgpack over the control socket."""

from __future__ import annotations

from typing import Any

import msgspec

from tokenspeed.config.schema import EngineConfig
from tokenspeed.engine.ranks.place import Place
from tokenspeed.engine.reports import StartFailure
from tokenspeed.placement.expert_load import ExpertLoad


class RankHello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """A worker is there, or an agent that will start one once it is told the settings.

    Args:
        rank: as the launcher told it.
        token: proves that the launcher of this server has started it.
        device_index: which of the accelerators that it sees is its own; -1: by its place among the
            ranks of its host.
    """

    rank: int
    pid: int
    host: str
    token: str = ""
    device_index: int = -1


class RankSettings(msgspec.Struct, frozen=True, kw_only=True, tag="settings"):
    """Rank 0's answer.

    Args:
        plugins: `PluginPlan.to_json()`.
        num_readers: of the plan ring, the workers of rank 0's host.
        reader: which of them this one is; -1: it is on another host, and plans come by the group.
        ring_path: file that is the ring's memory; "": it was inherited.
        plan_ranks: those of the group that brings plans to other hosts.
    """

    config: EngineConfig
    plugins: dict[str, Any]
    place: Place
    log_level: str
    num_readers: int = 0
    reader: int = -1
    ring_path: str = ""
    plan_ranks: tuple[int, ...] = ()


class RankJoining(msgspec.Struct, frozen=True, kw_only=True, tag="joining"):
    """Everything before the communicator went well; the worker joins its group when told to.

    Args:
        pid: of the worker, whose agent said hello before there was one.
    """

    pid: int


class RankLoaded(msgspec.Struct, frozen=True, kw_only=True, tag="loaded"):
    """A worker has its weights, and has room for so many of each; it waits for what all have."""

    room: tuple[int, ...]


class RankGoOn(msgspec.Struct, frozen=True, kw_only=True):
    """Rank 0's word to a worker that waits, once every rank is as far.

    Args:
        room: what every rank has room for; (): nothing was asked.
    """

    room: tuple[int, ...] = ()


class RankReady(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """A worker has built its part.

    Args:
        facts: what must be alike on all ranks, by name.
        tells_health: it says of each step whether it went well (health.py).
        device: where it computes, for the log.
        stored_keys: of the records that its store has found, one behind the other.
    """

    facts: dict[str, str]
    device: str
    stored_keys: bytes = b""
    tells_health: bool = False


class RankHealth(msgspec.Struct, frozen=True, kw_only=True, tag="health"):
    """So many steps went well on a worker of another host."""

    steps: int


class RankBeat(msgspec.Struct, frozen=True, kw_only=True, tag="beat"):
    """A worker lives.

    Args:
        steps: plans that it has carried out.
        calls: collectives that it has entered, and left: an odd number is inside of one.
    """

    steps: int
    calls: int


class RankExperts(msgspec.Struct, frozen=True, kw_only=True, tag="experts"):
    """What a pipeline stage knows of the load of its experts; its first rank says it."""

    load: ExpertLoad


class RankMoves(msgspec.Struct, frozen=True, kw_only=True, tag="moves"):
    """What ended on a worker of the moves between tiers, since it said so last.

    Args:
        ended: transfer id and whether it went well, of each.
        lost_keys: of records that its store dropped before those ended, one behind the other.
    """

    ended: tuple[tuple[int, bool], ...]
    lost_keys: bytes = b""


class RankFailed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """A worker ends because of an error.

    Args:
        in_collective: it came out of a collective, which another rank may have broken.
    """

    failure: StartFailure
    in_collective: bool = False


FromRank = (
    RankHello
    | RankJoining
    | RankLoaded
    | RankReady
    | RankBeat
    | RankHealth
    | RankExperts
    | RankMoves
    | RankFailed
)
