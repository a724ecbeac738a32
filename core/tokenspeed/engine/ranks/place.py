"""Which rank a process is, and whether an engine of these settings can have several.

Loads no torch.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec

from tokenspeed.errors import ConfigError
from tokenspeed.placement.mesh import Degrees, build_mesh

if TYPE_CHECKING:
    from tokenspeed.config.schema import EngineConfig


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A rank among those of its replica.

    Args:
        local_rank, local_world: among those of its host, which share its processors.
        num_hosts: that the ranks are on.
        device_index: which of the accelerators that this process sees is its own.
        rendezvous: text that the ranks of this start share, for their communicators.
    """

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1
    num_hosts: int = 1
    device_index: int = 0
    rendezvous: str = ""


ALONE = Place()


def degrees_of(config: EngineConfig) -> Degrees:
    """Return the degrees of parallelism that the settings name."""
    return Degrees(
        tp=config.tp,
        dp=config.dp,
        cp=config.cp,
        pp=config.pp,
        ep=config.ep,
        dense_tp=config.dense_tp,
    )


def mesh_text(degrees: Degrees) -> str:
    """Return the degrees for the start-up block: the usual three, and others that are not 1."""
    shown = {"tp": degrees.tp, "dp": degrees.dp, "ep": degrees.ep}
    further = {"cp": degrees.cp, "pp": degrees.pp, "dense_tp": degrees.dense_tp or degrees.tp}
    usual = {"cp": 1, "pp": 1, "dense_tp": degrees.tp}
    shown |= {name: value for name, value in further.items() if value != usual[name]}
    return " ".join(f"{name}={value}" for name, value in shown.items())


def world_of(config: EngineConfig) -> int:
    """Return the number of ranks of a replica.

    Raises:
        ConfigError: the degrees do not fit together, or something asked for does not work on
            several ranks yet.
    """
    degrees = degrees_of(config)
    build_mesh(degrees)
    _check_balanced(config)
    if degrees.world > 1:
        _check_built(config)
    elif config.launcher != "local":
        raise ConfigError(
            f"launcher is {config.launcher}, and the settings ask for one rank; give degrees of "
            "parallelism, such as --tp 2, or leave --launcher out"
        )
    return degrees.world


def _check_balanced(config: EngineConfig) -> None:
    """Refuse what moving experts lacks."""
    if config.eplb_slots and not config.eplb_steps:
        raise ConfigError(
            f"eplb_slots is {config.eplb_slots} and eplb_steps is 0: copies of experts are made "
            "when their load is looked at; give --eplb-steps too, such as 1000, or leave both out"
        )
    if config.eplb_steps and config.ep == 1:
        raise ConfigError(
            f"eplb_steps is {config.eplb_steps} and ep is 1: experts move between the ranks of ep, "
            "2 or more are needed; give --ep, or leave --eplb-steps out"
        )


def _check_built(config: EngineConfig) -> None:
    """Refuse by name what several ranks, or several partitions of attention, cannot do yet."""
    missing = {
        "replicas": (
            config.replicas,
            config.replicas > 1 and config.launcher != "local",
            f"with launcher {config.launcher}; run several servers, or use --launcher local",
        ),
        "tune": (config.tune, config.tune, "tune on one rank; its evidence is kept"),
    }
    for name, (value, is_asked, way) in missing.items():
        if is_asked:
            raise ConfigError(
                f"{name} is {value} and the replica has {degrees_of(config).world} ranks: {name} "
                f"works on one rank only in this version; {way}"
            )
    if config.dp > 1:
        _check_partitions(config)


def _check_partitions(config: EngineConfig) -> None:
    missing = {
        "record": (config.record, bool(config.record)),
        "tenants": (config.tenants, bool(config.tenants)),
        "min_tps_per_user": (config.min_tps_per_user, config.min_tps_per_user > 0),
        "host_kv_gib": (config.host_kv_gib, config.host_kv_gib > 0),
    }
    for name, (value, is_asked) in missing.items():
        if is_asked:
            raise ConfigError(
                f"{name} is {value} and dp is {config.dp}: {name} works with one partition of "
                "attention only in this version; leave it out, or use tp instead of dp"
            )


def make_rendezvous(host: str) -> str:
    """Return a text of one start, under which the ranks' communicators find each other.

    Args:
        host: under which other hosts reach rank 0's; "": all ranks are on this host.
    """
    name = f"engine-{uuid4().hex}"
    if not host:
        return name
    with socket.create_server(("", 0)) as probe:  # rank 0's communicator takes the port next
        return f"tcp://{host}:{probe.getsockname()[1]}/{name}"
