"""Ranks that Ray starts: one actor a rank in one placement group, restarted by Ray.

Rank 0's actor holds the place of the engine, which runs beside the server; every other actor is an
agent. Ray's dashboard shows them with their states, named "tokenspeed-PORT-rank-N" and, as what
they say they are, with rank and host. Ray is an optional package, and its dashboard an extra of it.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import tempfile
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec

from tokenspeed.engine.ranks.source import RankAddress, listen_for_ranks, source_of
from tokenspeed.errors import CapacityError, ConfigError
from tokenspeed.log import LOGGER, set_up_logging

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokenspeed.config.schema import EngineConfig
    from tokenspeed.engine.ranks.source import RankSource

NAMESPACE = "tokenspeed"
PLACE_S = 60
"""Longest wait for the cluster to have room for all ranks."""
_NODE_SHARE = 0.001
"""Of a node's own resource: asking for it binds a bundle to the node."""


@contextmanager
def ray_ranks(config: EngineConfig, world: int) -> Iterator[RankSource]:
    """Start every rank's actor in the cluster that Ray finds, or in one of this host alone.

    Raises:
        ConfigError: Ray is not installed.
        CapacityError: the cluster has no room for so many ranks.
    """
    ray = _ray()
    with tempfile.TemporaryDirectory(prefix="tokenspeed-ray-") as empty:
        # Ray's workers look for modules in the folder that they are started in.
        with contextlib.chdir(empty):
            found = ray.init(namespace=NAMESPACE, logging_level=logging.WARNING)
        _tell_dashboard(found.dashboard_url)
        try:
            with _actors(ray, config, world) as source:
                yield source
        finally:
            ray.shutdown()


def _tell_dashboard(url: str | None) -> None:
    """Say where the ranks can be looked at."""
    if url:
        LOGGER.info("Ray's dashboard shows the ranks as actors: http://%s", url)
    else:
        LOGGER.info("Ray has no dashboard here; `pip install 'ray[default]'` brings it")


@contextmanager
def _actors(ray: Any, config: EngineConfig, world: int) -> Iterator[RankSource]:
    """Start every rank's actor, and end them."""
    host = ray.util.get_node_ip_address()
    listener, address = listen_for_ranks(host)
    with listener, _placed(ray, config, world, host) as group:
        actors = [_start(ray, group, address, rank, world, config) for rank in range(world)]
        try:
            # Rank 0's engine is no child of its actor: it sees the devices of the others, too.
            own = max(0, ray.get(actors[0].given_device.remote()))
            yield source_of(listener, address, device_index=own)
        finally:
            for actor in actors:
                ray.kill(actor)


class RankActor:
    """What Ray runs for one rank. Thread: Ray's, one a method."""

    def __init__(self, rank: int, world: int, log_level: str) -> None:
        self._rank, self._world = rank, world
        set_up_logging(log_level)

    def __repr__(self) -> str:
        """Return the name in Ray's log lines and dashboard."""
        return f"tokenspeed rank {self._rank} of {self._world} on {socket.gethostname()}"

    def given_device(self) -> int:
        """Return the number of the accelerator that Ray gave this actor; -1: none."""
        given = import_module("ray").get_runtime_context().get_accelerator_ids()
        ids = [item for items in given.values() for item in items]
        return int(ids[0]) if ids and str(ids[0]).isdigit() else -1

    def serve(self, address: dict[str, Any]) -> int:
        """Keep the rank's worker at work until the server is gone."""
        from tokenspeed.engine.ranks.agent import run_agent

        # Ray shows an actor only what it gives it, and counts that from 0.
        device_index = 0 if self.given_device() >= 0 else -1
        return run_agent(
            msgspec.convert(address, RankAddress), self._rank, device_index=device_index
        )


@contextmanager
def _placed(ray: Any, config: EngineConfig, world: int, host: str) -> Iterator[Any]:
    """Reserve a bundle a rank, the first on this node."""
    bundle = _bundle(ray, config)
    bundles = [dict(bundle) for _ in range(world)]
    bundles[0][f"node:{host}"] = _NODE_SHARE
    group = ray.util.placement_group(bundles, strategy="PACK", name="tokenspeed")
    try:
        if not group.wait(PLACE_S):
            raise CapacityError(
                f"Ray has no room for {world} ranks of {bundle} within {PLACE_S} s; the cluster "
                f"has {ray.cluster_resources()}, free is {ray.available_resources()}; add nodes, "
                "or ask for fewer ranks"
            )
        yield group
    finally:
        ray.util.remove_placement_group(group)


def _bundle(ray: Any, config: EngineConfig) -> dict[str, float]:
    """Return what one rank needs: a processor, and an accelerator where the cluster has any."""
    has_accelerators = bool(ray.cluster_resources().get("GPU"))
    return {"CPU": 1, "GPU": 1} if has_accelerators and config.device != "cpu" else {"CPU": 1}


def _start(
    ray: Any, group: Any, address: RankAddress, rank: int, world: int, config: EngineConfig
) -> Any:
    strategies = import_module("ray.util.scheduling_strategies")
    bundle = _bundle(ray, config)
    actor = (
        ray.remote(RankActor)
        .options(
            name=f"tokenspeed-{address.port}-rank-{rank}",
            num_cpus=bundle["CPU"],
            num_gpus=bundle.get("GPU", 0),
            max_restarts=-1,  # Ray starts it anew, and calls `serve` again
            max_task_retries=-1,
            max_concurrency=2,
            scheduling_strategy=strategies.PlacementGroupSchedulingStrategy(
                group, placement_group_bundle_index=rank
            ),
        )
        .remote(rank, world, logging.getLevelName(LOGGER.getEffectiveLevel()).lower())
    )
    if rank > 0:
        actor.serve.remote(msgspec.to_builtins(address))
    return actor


def _ray() -> Any:
    try:
        import_module("ray.util")
        return import_module("ray")
    except ImportError as error:
        raise ConfigError(
            f"launcher is ray, and the package ray cannot be imported ({error}); `pip install "
            "ray`, or use --launcher local or torchrun"
        ) from error
