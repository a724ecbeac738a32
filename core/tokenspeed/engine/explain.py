"""Explains every choice of a start from config.json alone: no weights are read, no device is used.

The choices are those of `build.py`, made by the same code: the same requests, the same selection.
What was chosen is not loaded, and the model is built from shapes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from tokenspeed import ops
from tokenspeed.checkpoint.json_file import read_json_object
from tokenspeed.config.load import replace_settings
from tokenspeed.contracts.model import expert_groups_of
from tokenspeed.engine.build import model_path
from tokenspeed.engine.choices import Choices
from tokenspeed.engine.evidence import evidence_for
from tokenspeed.engine.facts import model_name
from tokenspeed.engine.pins import idle_pins
from tokenspeed.engine.profile import ProfileRuntime, profile_of
from tokenspeed.engine.ranks.message_sizes import kept_notes
from tokenspeed.engine.rules import device_traits
from tokenspeed.engine.shapes import ShapeBinder, bind_weights, build_shapes
from tokenspeed.engine.sizes import check_speculation, resolve_sizes
from tokenspeed.engine.start_settings import plugins_of
from tokenspeed.engine.tiers import check_tiers
from tokenspeed.errors import CapabilityError, CheckpointError, IdentifiedError
from tokenspeed.kernels.rules import AUTO
from tokenspeed.models.failures import model_errors
from tokenspeed.models.modules import register_model_modules
from tokenspeed.models.registry import architecture_of
from tokenspeed.plugins import BindingPlan, load_planned
from tokenspeed.plugins.stated_registry import add_stated, needs_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tokenspeed.config.schema import EngineConfig
    from tokenspeed.contracts.binding import Decision
    from tokenspeed.contracts.device import DeviceFacts, DeviceRuntime
    from tokenspeed.contracts.weights import WeightSource
    from tokenspeed.engine.sizes import EngineSizes
    from tokenspeed.plugins import Registry

CONFIG_FILE = "config.json"


@dataclass(slots=True)
class Explanation:
    """What a start would choose.

    Args:
        plan: every choice that can be made.
        failures: slot or operator -> why nobody can fill it.
        notes: what this explanation leaves out, and pins that nothing asked for.
    """

    model: str
    architecture: str
    dtype: str
    device: DeviceFacts
    plan: BindingPlan
    registry: Registry
    failures: dict[str, IdentifiedError] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def records(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield (slot or operator, record), refused requests among them."""
        yield from ((slot, decision.record) for slot, decision in self.plan.slots.items())
        yield from ((str(item.record["slot"]), item.record) for item in self.plan.kernels)
        for name, error in self.failures.items():
            record = getattr(error, "record", None)
            if record is not None:
                yield name, record

    def silent_plugins(self) -> tuple[str, ...]:
        """Return the plugins that are known by a manifest alone, and one that states no offer."""
        offering = self.registry.offering()
        stated = (item.id for item in self.registry.plugins if item.state == "stated")
        return tuple(plugin_id for plugin_id in stated if plugin_id not in offering)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as `GET /v1/engine/plan` has it, the device, and what fails."""
        return {
            "model": self.model,
            "architecture": self.architecture,
            "dtype": self.dtype,
            "device": profile_of(self.device),
            **self.plan.to_json(),
            "plugins": [asdict(status) for status in self.registry.plugins],
            "failures": [
                {
                    "slot": name,
                    "id": error.id,
                    "message": error.message,
                    "record": getattr(error, "record", None),
                }
                for name, error in self.failures.items()
            ],
            "notes": self.notes,
        }


def explain_start(config: EngineConfig, profile: DeviceFacts | None = None) -> Explanation:
    """Make every choice that `build_engine` would make.

    Args:
        config: as for serving; `model` may be a config.json too.
        profile: the device to choose for; None: the one that is here.
    Raises:
        TokenSpeedError: the model's config, a setting or a named plugin is wrong.
    """
    check_tiers(config)
    path = model_path(config)
    if profile is not None:
        config = replace_settings(config, device=profile.kind)
    registry = _registry(config, profile)
    register_model_modules(registry, config.model_module, lock=config.plugins_lock)
    choices = _Choices(config, registry, profile)
    failures: dict[str, IdentifiedError] = {}
    notes: list[str] = []
    runtime = _runtime(choices, profile, failures)
    model_config = _model_config(choices, path, notes)
    model_class = choices.model_class(model_config)
    sizes = resolve_sizes(config, model_config, device_kind=runtime.facts.kind)
    with model_errors(model_class, "it declared its cache and experts"):
        groups = model_class.cache_groups(model_config)
        experts = expert_groups_of(model_class, model_config)
    check_speculation(config, groups)
    evidence = evidence_for(config, registry, runtime.facts, sizes, model_config)
    choices.evidence = evidence
    for group in groups:
        with _Collected(f"attention.{group.name}", failures):
            choices.attention((group,), sizes, runtime)
    for expert_group in experts:
        with _Collected(f"moe.{expert_group.name}", failures):
            choices.moe((expert_group,), sizes, runtime)
    traits = {**device_traits(runtime.facts), "dtype": sizes.dtype}
    binder = ShapeBinder(registry, traits, choices.rules, failures, evidence)
    with model_errors(model_class, "it was built"):
        model = build_shapes(model_class, model_config, (*groups, *experts), binder, sizes)
    with model_errors(model_class, "its weights were loaded"):
        notes += bind_weights(model, choices.packed_weights(path), sizes)
    binder.bind(ops.kv.copy_tokens)
    for name, choose in _rest(choices, sizes, runtime).items():
        with _Collected(name, failures):
            choose()
    plan = BindingPlan.of(choices.decisions, binder.decisions)
    notes += kept_notes(evidence.file)
    notes += idle_pins(choices.rules.pins, {*plan.names(), *failures})
    return Explanation(
        model=config.model or model_name(path),
        architecture=architecture_of(model_config),
        dtype=sizes.dtype,
        device=runtime.facts,
        plan=plan,
        registry=registry,
        failures=failures,
        notes=notes,
    )


def _registry(config: EngineConfig, profile: DeviceFacts | None) -> Registry:
    """Load the plugins; for a profile those that look for a device are known by their manifests."""
    if profile is None:
        return load_planned(plugins_of(config), role="engine")
    loaded = tuple(name for name in config.plugins if name != AUTO and not needs_device(name))
    registry = load_planned(plugins_of(replace_settings(config, plugins=loaded)), role="engine")
    add_stated(
        registry,
        config.plugins,
        profile.kind,
        lock=config.plugins_lock,
        experimental=config.allow_experimental,
    )
    return registry


def _runtime(
    choices: _Choices, profile: DeviceFacts | None, failures: dict[str, IdentifiedError]
) -> DeviceRuntime:
    if profile is None:
        return choices.device()
    with _Collected("device", failures):
        choices.device()
    return ProfileRuntime(profile)


def _model_config(choices: _Choices, path: Path, notes: list[str]) -> Mapping[str, Any]:
    """Read config.json, or what stands for it in a file of another format; no weights are read."""
    if path.suffix != ".json":
        try:
            source = choices.checkpoint(path)
        except CheckpointError:
            if not path.is_dir():
                raise
        else:
            config = source.config()
            source.close()
            return config
    notes.append("weight_format: no weights lie beside config.json")
    return read_json_object(path / CONFIG_FILE if path.is_dir() else path)


def _rest(
    choices: _Choices, sizes: EngineSizes, runtime: DeviceRuntime
) -> dict[str, Callable[[], object]]:
    """Return the choices that depend on nothing but the device."""
    return {
        "sampler": lambda: choices.sampler(sizes, runtime),
        "communicator": lambda: choices.communicator(sizes, runtime),
        "policy": choices.policy,
        "kv_store": lambda: choices.named("kv_store"),
        "speculator": lambda: choices.named("speculator"),
    }


class _Choices(Choices):
    """The choices of a start; what was chosen is not loaded."""

    def __init__(
        self, config: EngineConfig, registry: Registry, profile: DeviceFacts | None
    ) -> None:
        super().__init__(config, registry)
        self._profile = profile

    def packed_weights(self, path: Path) -> WeightSource | None:
        """Open the file whose packed tensors decide kernels; None: all tensors are plain."""
        is_packed = self._config.weights == "packed" and path.suffix != ".json"
        return self.checkpoint(path) if is_packed else None

    def _load(self, slot: str, decision: Decision, **arguments: Any) -> Any:
        if slot == "device" and self._profile is not None:
            return ProfileRuntime(self._profile)
        if slot in ("device", "weight_format"):  # they read facts and headers
            return super()._load(slot, decision, **arguments)
        return _NotLoaded()


class _NotLoaded:
    """Stands for what was chosen."""


class _Collected:
    """Keeps the reason why a choice cannot be made, and goes on."""

    def __init__(self, name: str, failures: dict[str, IdentifiedError]) -> None:
        self._name, self._failures = name, failures

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, CapabilityError):
            return False
        self._failures[self._name] = error
        return True
