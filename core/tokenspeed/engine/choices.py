"""The choices of a start, each with its decision: device, checkpoint format, model, backends."""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from tokenspeed.contracts.attention import CacheDemand
from tokenspeed.contracts.model import LATENT
from tokenspeed.contracts.speculator import SpeculatorFacts
from tokenspeed.engine.built import building, check_built, check_kind
from tokenspeed.engine.grammars import Grammars
from tokenspeed.engine.pins import check_pins
from tokenspeed.engine.policy_guard import GuardedPolicy
from tokenspeed.engine.ranks.communicators import rivals_of, shared
from tokenspeed.engine.ranks.group_seat import ALONE, GroupSeat
from tokenspeed.engine.rules import device_traits, rules_of
from tokenspeed.engine.sizes import CPU
from tokenspeed.engine.store_guard import GuardedStore
from tokenspeed.errors import (
    CapabilityError,
    CheckpointError,
    ConfigError,
    PluginError,
    TokenSpeedError,
    told,
)
from tokenspeed.kernels import Decision, select
from tokenspeed.kernels.not_offered import not_offered
from tokenspeed.kernels.rules import AUTO
from tokenspeed.log import LOGGER
from tokenspeed.models.registry import architecture_of, candidates, load_model_class
from tokenspeed.plugins.model_suggestion import suggestion_text, unloaded_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tokenspeed.config.schema import EngineConfig
    from tokenspeed.contracts.attention import AttentionBackend
    from tokenspeed.contracts.binding import RegisteredOffer
    from tokenspeed.contracts.communicator import Communicator
    from tokenspeed.contracts.device import DeviceRuntime
    from tokenspeed.contracts.grammar import GrammarEngine, GrammarVocabulary
    from tokenspeed.contracts.kv_store import KVStore
    from tokenspeed.contracts.model import CacheGroup, CausalLM
    from tokenspeed.contracts.moe import ExpertGroup, MoEBackend
    from tokenspeed.contracts.registration import Offer
    from tokenspeed.contracts.sampler import Sampler
    from tokenspeed.contracts.speculator import Speculator
    from tokenspeed.contracts.weights import WeightFormat, WeightSource
    from tokenspeed.engine.sizes import EngineSizes
    from tokenspeed.kernels.registry import Evidence
    from tokenspeed.plugins import Registry


SPECULATOR_METHODS = ("start", "extend", "propose", "end")


class Choices:
    """Chooses and loads what fills each slot; `decisions` is what the BindingPlan is made of.

    Whoever builds sets `evidence`, measured times, once the model's shapes are known.
    """

    def __init__(self, config: EngineConfig, registry: Registry) -> None:
        self.decisions: dict[str, Decision] = {}
        self.evidence: Evidence | None = None
        self._config = config
        self._registry = registry
        self.rules = rules_of(config)
        check_pins(self.rules.pins, registry.operators)

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

    def named(self, slot: str) -> Decision | None:
        """Choose what is only used when the setting of the slot's name names it; None: it does not.

        Raises:
            CapabilityError: no loaded plugin offers it.
        """
        name: str = getattr(self._config, slot)
        return self._decide(slot, self._offers_named(slot, name), {}) if name else None

    def check_kv_store(self) -> None:
        """Check that the store that is asked for is offered; it is opened when its name is known.

        Raises:
            CapabilityError: no loaded plugin offers it.
        """
        if self._config.kv_store:
            self._offers_named("kv_store", self._config.kv_store)

    def kv_store(self, namespace: str) -> GuardedStore | None:
        """Open the store behind the host tier; None where none is asked for.

        Raises:
            CapabilityError: no loaded plugin offers it.
        """
        config, decision = self._config, self.named("kv_store")
        if decision is None:
            return None
        store: KVStore = self._load(
            "kv_store",
            decision,
            namespace=namespace,
            folder=config.kv_store_folder,
            capacity_bytes=int(config.kv_store_gib * (1 << 30)),
        )
        return GuardedStore(store, decision.winner.pin)

    def speculator(self, sizes: EngineSizes) -> Speculator | None:
        """Build the speculator that was asked for; None where none is.

        Raises:
            CapabilityError: no loaded plugin offers it.
            PluginError: it cannot be built, or is not what it says.
        """
        decision = self.named("speculator")
        if decision is None:
            return None
        speculator: Speculator = self._load(
            "speculator",
            decision,
            max_drafts=self._config.max_drafts,
            max_running=self._config.max_running,
            vocab_size=sizes.vocab_size,
        )
        check_speculator(speculator, decision)
        return speculator

    def grammars(self, vocabulary: GrammarVocabulary) -> Grammars | None:
        """Choose what keeps answers in a language; None where no loaded plugin offers it.

        Raises:
            PluginError: it cannot be built, or is not what it says.
        """
        offers = self._registry.offers("grammar")
        if not offers:
            return None
        decision = self._decide("grammar", offers, {})
        engine: GrammarEngine = self._load("grammar", decision, vocabulary=vocabulary)
        cache_bytes = self._config.grammar_cache_mib << 20
        return Grammars(engine, decision.winner.pin, cache_bytes=cache_bytes)

    def policy(self) -> GuardedPolicy:
        """Choose the policy; it is always named, so that installing a wheel changes no order."""
        decision = self._decide("policy", self._registry.offers("policy"), {})
        return GuardedPolicy(self._load("policy", decision), decision.winner.pin)

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

    def _offers_named(self, slot: str, name: str) -> Sequence[RegisteredOffer[Offer]]:
        """Return the offers of a slot with this PLUGIN/NAME or NAME.

        Raises:
            CapabilityError: no loaded plugin has one.
        """
        offers = self._registry.offers(slot)
        named = [item for item in offers if name in (item.pin, item.offer.name)]
        if not named:
            raise not_offered(slot, name, (item.pin for item in offers))
        return named

    def _decide(
        self,
        slot: str,
        offers: Sequence[RegisteredOffer[Offer]],
        traits: Mapping[str, object],
        *,
        wishes: Mapping[str, object] | None = None,
        pin: str | None = None,
    ) -> Decision:
        """Choose for a slot, or for a part of it such as "attention.full".

        Args:
            pin: None: that of the settings.
        """
        rules, base, evidence = self.rules, slot.partition(".")[0], self.evidence
        if pin is None:
            pin = rules.pins.get(slot, rules.pins.get(base, AUTO))
        decision = select(
            slot,
            offers,
            traits,
            pin=pin,
            pinned_as="the default" if slot in rules.defaults else "pinned",
            fallback=rules.fallback,
            # What nobody computes with has no determinism to ask for.
            objective=rules.objective if traits else "latency",
            preferences={**(wishes or {}), **rules.preferences},
            evidence=None if evidence is None else evidence.seconds(slot, traits),
            failures=None if evidence is None else evidence.failures(slot, traits),
            forced=rules.forced if pin != AUTO else (),
        )
        self.decisions[slot] = decision
        return decision

    def _load(self, slot: str, decision: Decision, **arguments: Any) -> Any:
        winner = decision.winner
        try:
            with building(winner, f"load of {slot}/{winner.offer.name}"):
                built = winner.offer.load(**arguments)
        except (ConfigError, PluginError):
            raise  # a setting is wrong, not the plugin; or the plugin has been named
        except TokenSpeedError as error:  # of ours, but said by the plugin: it is named too
            raise PluginError(
                f"plugin {winner.plugin_id} {winner.plugin_version} failed at load of "
                f"{slot}/{winner.offer.name}: {told(error)}; fix or leave out the plugin",
                id="offer-load-failed",
            ) from error
        check_built(slot, built, winner.pin)
        return built


def check_speculator(speculator: Speculator, decision: Decision) -> None:
    """Check that what a speculator declares is there.

    Raises:
        PluginError: a method is missing, or its facts are none.
    """
    facts = getattr(speculator, "facts", None)
    is_sound, wanted = False, list(SPECULATOR_METHODS)
    if isinstance(facts, SpeculatorFacts):
        is_sound = facts.num_grades >= 1
        wanted += ["observe"] if facts.observes else []
    missing = [name for name in wanted if not callable(getattr(speculator, name, None))]
    if is_sound and not missing:
        return
    problem = f"has no {', '.join(missing)}" if missing else f"has the facts {facts!r}"
    raise PluginError(
        f"speculator {decision.winner.pin} {problem}; needed are SpeculatorFacts with num_grades "
        f"of 1 or more, and {', '.join(wanted)}; fix its plugin, or leave it out (--speculator '')",
        id="offer-load-failed",
    )


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
