"""The choices of a start, each with its decision: device, checkpoint format, model, backends.

Those that the model does not compute with are of `service_choices.py`.
"""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from tokenspeed.contracts.attention import CacheDemand
from tokenspeed.contracts.model import LATENT
from tokenspeed.engine.built import building, check_built, check_kind
from tokenspeed.engine.ranks.communicators import rivals_of, shared
from tokenspeed.engine.ranks.group_seat import ALONE, GroupSeat
from tokenspeed.engine.rules import device_traits
from tokenspeed.engine.service_choices import ServiceChoices
from tokenspeed.engine.sizes import CPU
from tokenspeed.errors import (
    CapabilityError,
    CheckpointError,
    ConfigError,
)
from tokenspeed.kernels import Decision
from tokenspeed.kernels.rules import AUTO
from tokenspeed.log import LOGGER
from tokenspeed.models.registry import architecture_of, candidates, load_model_class
from tokenspeed.plugins.model_suggestion import suggestion_text, unloaded_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tokenspeed.contracts.attention import AttentionBackend
    from tokenspeed.contracts.binding import RegisteredOffer
    from tokenspeed.contracts.communicator import Communicator
    from tokenspeed.contracts.device import DeviceRuntime
    from tokenspeed.contracts.model import CacheGroup, CausalLM
    from tokenspeed.contracts.moe import ExpertGroup, MoEBackend
    from tokenspeed.contracts.registration import Offer
    from tokenspeed.contracts.sampler import Sampler
    from tokenspeed.contracts.weights import WeightFormat, WeightSource
    from tokenspeed.engine.sizes import EngineSizes


class Choices(ServiceChoices):
    """Chooses and loads what fills each slot."""

    def device(self, index: int = 0) -> DeviceRuntime:
        """Choose the accelerator.

        Args:
            index: which of those that this process sees; several ranks of a host have one each.
        Raises:
            CapabilityError: no loaded plugin offers the device kind that was asked for, or it knows
                one device only.
        """
        offers = self._registry.offers("device")
        kinds = sorted({_kind(item) for item in offers})
        wanted = self._config.device
        if wanted != "auto":
            offers = tuple(item for item in offers if _kind(item) == wanted)
        if not offers:
            raise CapabilityError(
                f"device {wanted!r} is not offered; loaded plugins have: "
                f"{', '.join(kinds) or 'none'}; load its plugin with --plugins",
                id="device-not-offered",
            )
        decision = self._decide("device", offers, {})
        self._check_device_fallback(_kind(decision.winner))
        runtime: DeviceRuntime = self._load("device", decision, **_index_of(decision, index))
        check_kind(_kind(decision.winner), runtime.facts.kind, decision.winner.pin)
        return runtime

    def _check_device_fallback(self, chosen: str) -> None:
        """Refuse to move to another kind of device because the plugin of a found one failed."""
        config = self._config
        if config.device != "auto" or config.allow_device_fallback:
            return
        for status in self._registry.plugins:
            kinds = sorted({facts.kind for facts in status.devices} - {chosen})
            if status.state == "quarantined" and kinds:
                raise CapabilityError(
                    f"device {chosen!r} would be used, but plugin {status.id} {status.version} "
                    f"found {', '.join(kinds)} and failed: {status.reason}; repair it, name other "
                    f"plugins (--plugins) or the device (--device {chosen}), or accept it with "
                    "--allow-device-fallback",
                    id="device-fallback-refused",
                )

    def checkpoint(self, path: Path) -> WeightSource:
        """Open the model's files with the format that recognises them.

        Raises:
            CheckpointError: nothing there, or no loaded format recognises it.
        """
        if not path.exists():
            raise CheckpointError(
                f"model {path} does not exist; give a Hugging Face folder or a .gguf file"
            )
        formats = self._registry.offers("weight_format")
        matching = [item for item in formats if _matches(item, path)]
        if not matching:
            known = ", ".join(item.pin for item in formats)
            raise CheckpointError(
                f"model {path} is in no known format; loaded formats: {known or 'none'}; give a "
                "folder with config.json and *.safetensors, or a .gguf file"
            )
        decision = self._decide("weight_format", matching, {})
        opener = self._load("weight_format", decision)
        with building(decision.winner, f"opening {path}"):
            source: WeightSource = opener.open(path)
            check_built("weight_source", source, decision.winner.pin)
        return source

    def model_class(self, model_config: Mapping[str, Any]) -> type[CausalLM]:
        """Find the architecture's class.

        Raises:
            ConfigError: no loaded plugin offers it.
            PluginError: several do and none is pinned, or its file cannot be loaded.
        """
        pin = self.rules.pins.get("model", AUTO)
        loaded = frozenset(item.id for item in self._registry.plugins if item.state == "registered")
        hint = suggestion_text(model_config, loaded)
        try:
            found = candidates(self._registry, model_config, pin=pin)
        except ConfigError as error:
            hint = hint or unloaded_text(loaded)
            raise ConfigError(f"{error}; {hint}") if hint else error from None
        if hint:
            LOGGER.info("%s", hint)
        decision = self._decide("model", found, {})
        return load_model_class(decision.winner, architecture_of(model_config))

    def attention(
        self, groups: Sequence[CacheGroup], sizes: EngineSizes, runtime: DeviceRuntime
    ) -> dict[str, AttentionBackend]:
        """Choose one attention backend a cache group that keeps keys and values.

        Raises:
            CapabilityError: none takes the geometry; lists why each does not.
        """
        return {
            group.name: self._attention_of(group, sizes, runtime)
            for group in groups
            if group.kind != "state"
        }

    def moe(
        self, groups: Sequence[ExpertGroup], sizes: EngineSizes, runtime: DeviceRuntime
    ) -> dict[str, MoEBackend]:
        """Choose one MoE backend an expert group.

        Raises:
            CapabilityError: none takes the experts; lists why each does not.
        """
        return {group.name: self._moe_of(group, sizes, runtime) for group in groups}

    def cache_demands(self) -> dict[str, CacheDemand]:
        """Return what the chosen attention backends need of the cache's layout, by group."""
        demands = {}
        for slot, decision in self.decisions.items():
            kind, _, group = slot.partition(".")
            if kind == "attention":
                demands[group] = decision.winner.offer.facts.get("cache", CacheDemand())
        return demands

    def sampler(self, sizes: EngineSizes, runtime: DeviceRuntime) -> Sampler:
        """Choose the sampler."""
        traits = {**device_traits(runtime.facts), "dtype": "float32"}
        decision = self._decide("sampler", self._registry.offers("sampler"), traits)
        sampler: Sampler = self._load(
            "sampler", decision, device=runtime.torch_device(), vocab_size=sizes.vocab_size
        )
        return sampler

    def communicator(
        self, sizes: EngineSizes, runtime: DeviceRuntime, seat: GroupSeat = ALONE
    ) -> Communicator:
        """Choose the collectives of a group of ranks, and join it.

        Raises:
            CapabilityError: none moves data between such ranks; lists why each does not.
            EngineError: the group is not complete within its time.
        """
        import torch

        traits = {**device_traits(runtime.facts), "dtype": sizes.dtype, **seat.traits()}
        slot = f"communicator.{seat.name}" if seat.name else "communicator"
        offers = self._registry.offers("communicator")
        decision = self._decide(slot, offers, traits, wishes=seat.wishes())

        def load(item: RegisteredOffer[Offer]) -> Communicator:
            apart = "" if item is decision.winner else f"-{item.pin.replace('/', '-')}"
            joined: Communicator = self._load(
                slot,
                replace(decision, winner=item),
                rank=seat.rank,
                size=seat.size,
                rendezvous=f"{seat.rendezvous or f'engine-{uuid4().hex}'}{apart}",
                device=runtime.torch_device(),
                timeout_s=seat.timeout_s,
            )
            return joined

        chosen = load(decision.winner)
        rivals = rivals_of(decision.record, offers) if seat.size > 1 else ()
        if not rivals:
            return chosen
        return shared(
            decision,
            chosen,
            rivals,
            load,
            seat=seat,
            runtime=runtime,
            dtype=getattr(torch, sizes.dtype),
            file=getattr(self.evidence, "file", None),
        )

    def host_communicator(self, seat: GroupSeat) -> Communicator:
        """Choose what moves host memory between the ranks of a group, and join it.

        A pin of the slot is of what moves the model's tensors, and does not count here.

        Raises:
            CapabilityError: no loaded plugin does.
            EngineError: the group is not complete within its time.
        """
        import torch

        slot = f"communicator.{seat.name}"
        traits = {
            "device": CPU,
            "arch": (platform.machine(),),
            "dtype": "float32",
            **seat.traits(),
        }
        offers = self._registry.offers("communicator")
        decision = self._decide(slot, offers, traits, wishes=seat.wishes(), pin=AUTO)
        joined: Communicator = self._load(
            slot,
            decision,
            rank=seat.rank,
            size=seat.size,
            rendezvous=seat.rendezvous,
            device=torch.device(CPU),
            timeout_s=seat.timeout_s,
        )
        return joined

    def _attention_of(
        self, group: CacheGroup, sizes: EngineSizes, runtime: DeviceRuntime
    ) -> AttentionBackend:
        import torch

        slot = f"attention.{group.name}"
        num_kv_heads, head_dim, v_head_dim = _kv_shape(group)
        traits = {
            **device_traits(runtime.facts),
            "dtype": sizes.dtype,
            "cache": "mla" if group.value_dim else "gqa",
            "head_dim": head_dim,
            "v_head_dim": v_head_dim,
            "gqa_ratio": sizes.num_heads // num_kv_heads,
            "block_tokens": sizes.block_tokens,
            "window": group.window,
            "sinks": group.sinks,
            "softcap": group.softcap,
        }
        decision = self._decide(slot, self._registry.offers("attention"), traits)
        backend: AttentionBackend = self._load(
            slot,
            decision,
            num_heads=sizes.num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            block_tokens=sizes.block_tokens,
            dtype=getattr(torch, sizes.dtype),
            device=runtime.torch_device(),
            **({"v_head_dim": v_head_dim} if v_head_dim else {}),
        )
        return backend

    def _moe_of(self, group: ExpertGroup, sizes: EngineSizes, runtime: DeviceRuntime) -> MoEBackend:
        import torch

        slot = f"moe.{group.name}"
        traits = {**device_traits(runtime.facts), "dtype": sizes.dtype, **group.traits()}
        decision = self._decide(slot, self._registry.offers("moe"), traits)
        backend: MoEBackend = self._load(
            slot,
            decision,
            group=group,
            dtype=getattr(torch, sizes.dtype),
            device=runtime.torch_device(),
        )
        return backend


def _kv_shape(group: CacheGroup) -> tuple[int, int, int]:
    """Return (kv heads, head dim, value dim where it differs, else 0).

    Raises:
        CapabilityError: the group keeps neither keys and values nor a latent.
    """
    shapes = {field.name: field.shape for field in group.fields}
    if group.value_dim and list(shapes) == [LATENT] and len(shapes[LATENT]) == 2:
        num_kv_heads, head_dim = shapes[LATENT]
        return num_kv_heads, head_dim, group.value_dim
    is_kv = list(shapes) == ["k", "v"] and len(shapes["k"]) == len(shapes["v"]) == 2
    if group.value_dim or not is_kv or shapes["k"][0] != shapes["v"][0]:
        raise CapabilityError(
            f"cache group {group.name!r} keeps the fields {list(shapes.items())}, attention "
            "backends of this version read k and v of (heads, head dim), or a latent with its "
            "value_dim; serve a model with such a cache",
            id="cache-unsupported",
        )
    (num_kv_heads, head_dim), v_head_dim = shapes["k"], shapes["v"][1]
    return num_kv_heads, head_dim, v_head_dim if v_head_dim != head_dim else 0


def _index_of(decision: Decision, index: int) -> dict[str, int]:
    """Return the argument that a device's `load` takes beside none: which of several."""
    winner = decision.winner
    if winner.offer.facts.get("takes_index"):
        return {"index": index}
    if index and _kind(winner) != CPU:
        raise CapabilityError(
            f"device {winner.pin} is asked for device {index} of this host and its plugin knows "
            "one device a host (its offer has no fact takes_index); place one rank a host, or "
            "update the plugin",
            id="device-not-offered",
        )
    return {}


def _kind(offer: RegisteredOffer[Offer]) -> str:
    return str(offer.offer.facts.get("kind", offer.offer.name))


def _matches(offer: RegisteredOffer[Offer], path: Path) -> bool:
    with building(offer, f"a look at {path}"):
        opener: WeightFormat = offer.offer.load()
        return opener.matches(path)
