"""Calls one plugin's hooks and stages what it offers; nothing is visible before all succeeded.

Each plugin gets a pluggy manager of its own, so that a plugin that fails half-way, or wraps hooks,
touches nobody else. A refused offer names plugin, hook, value and what is allowed.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pluggy

from tokenspeed import hookspecs
from tokenspeed.contracts.kernel import KernelOffer, Operator
from tokenspeed.contracts.registration import Offer
from tokenspeed.errors import PluginError, plugin_code, shown, told
from tokenspeed.plugins.nearest import nearest, suggestion
from tokenspeed.plugins.offer_facts import check_offer
from tokenspeed.plugins.slots import API_VERSION, SLOT_OF_HOOK, live_slot
from tokenspeed.plugins.stated import with_device

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tokenspeed.plugins.manifest import Manifest

HOOKS = tuple(name for name in vars(hookspecs) if name.startswith("register_"))

Anything = Offer | KernelOffer | Operator


class StagedRegistration:
    """Context of every register hook (`contracts/registration.Registration`)."""

    def __init__(self, manifest: Manifest, role: str, config: Mapping[str, Any]) -> None:
        self.plugin_id = manifest.id
        self.role = role
        self.config = config
        self.hook = ""
        self.staged: list[tuple[str, Anything]] = []
        self.refused: PluginError | None = None
        """The first refusal: a hook that goes on regardless has still not registered all."""
        self._manifest = manifest
        self._slots = manifest.slots
        self._names: set[tuple[str, str]] = set()

    def offer(self, offer: Any) -> None:
        """Stage an Offer, KernelOffer or Operator; see `contracts/registration.py`."""
        try:
            self._stage(offer)
        except PluginError as error:
            self.refused = self.refused or error
            raise

    def _stage(self, offer: Any) -> None:
        slot = live_slot(SLOT_OF_HOOK[self.hook]).name
        if slot not in self._slots:
            raise PluginError(
                f'slot {slot} is not in the manifest; add `{slot} = "..."` to [slots]',
                id="offer-invalid",
            )
        wanted = _OFFER_TYPES.get(self.hook, Offer)
        if not isinstance(offer, wanted):
            raise PluginError(
                f"{shown(offer)} is no {wanted.__name__}, which {self.hook} takes",
                id="offer-invalid",
            )
        check_offer(slot, offer, self._manifest.device_kinds)
        self._check_unique(slot, offer)
        counted = offer if isinstance(offer, Operator) else with_device(offer, self._manifest)
        self.staged.append((slot, counted))

    def _check_unique(self, slot: str, offer: Anything) -> None:
        key = (type(offer).__name__, slot + "/" + offer.name)
        if key in self._names:
            raise PluginError(
                f"name {offer.name!r} is offered twice for slot {slot}; rename one",
                id="offer-duplicate",
            )
        self._names.add(key)


_OFFER_TYPES: dict[str, type[Anything]] = {
    "register_operators": Operator,
    "register_kernels": KernelOffer,
}


def run_hooks(
    plugin: object, registration: StagedRegistration, on_hook_call: Callable[[str], None]
) -> pluggy.PluginManager:
    """Call every hook that `plugin` implements, in the order of hookspecs.py.

    Args:
        on_hook_call: told the name before every hook call, now and after the freeze.
    Raises:
        PluginError: an unknown or misspelled hook, a wrong signature, an unmarked method, a
            refused offer, or whatever the plugin raised; names hook and cause.
    """
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    _check_marked(plugin, manager)
    _check_signatures(plugin, manager, registration.plugin_id)
    try:
        manager.register(plugin, name=registration.plugin_id)
    except pluggy.PluginValidationError as error:
        raise PluginError(
            f"plugin {registration.plugin_id} does not fit plugin API {API_VERSION}: {error}",
            id="hook-signature",
        ) from error
    _check_hook_names(plugin, manager, registration.plugin_id)
    manager.add_hookcall_monitoring(lambda name, *_: on_hook_call(name), lambda *_: None)
    for name in HOOKS:
        registration.hook = name
        _call(getattr(manager.hook, name), name, registration)
    return manager


def _call(hook: Any, name: str, registration: StagedRegistration) -> None:
    try:
        with plugin_code():
            returned = hook(context=registration)
        if registration.refused is not None:
            raise registration.refused
    except PluginError as error:
        raise PluginError(
            f"hook {name}: {error.message}", id=error.id, exit_code=error.exit_code
        ) from error
    except Exception as error:
        raise PluginError(f"hook {name} raised {told(error)}", id="hook-raised") from error
    if returned:
        raise PluginError(
            f"hook {name} returned {shown(returned[0])}, which nobody reads (a generator and an "
            "async function have not even run); call context.offer in a plain function",
            id="hook-signature",
        )


def _check_hook_names(plugin: object, manager: pluggy.PluginManager, plugin_id: str) -> None:
    for caller in manager.get_hookcallers(plugin) or ():
        if not caller.has_spec():
            raise PluginError(
                f"plugin {plugin_id} implements unknown hook {caller.name!r} of plugin API "
                f"{API_VERSION}; {suggestion(caller.name, HOOKS)}",
                id="hook-unknown",
            )
    manager.check_pending()


def _check_signatures(plugin: object, manager: pluggy.PluginManager, plugin_id: str) -> None:
    """Refuse a hook that takes anything but the context, which nobody would pass."""
    for name in dir(plugin):
        if manager.parse_hookimpl_opts(plugin, name) is None:
            continue
        taken = list(inspect.signature(getattr(plugin, name)).parameters)
        extra = [argument for argument in taken if argument != "context"]
        if extra:
            near = nearest(name, HOOKS) or HOOKS[0]
            raise PluginError(
                f"plugin {plugin_id}: hook {name} takes ({', '.join(taken)}), plugin API "
                f"{API_VERSION} passes (context) and nothing else; drop {', '.join(extra)}: did "
                f"you mean {near}(context)?",
                id="hook-signature",
            )


def _check_marked(plugin: object, manager: pluggy.PluginManager) -> None:
    for name in dir(plugin):
        if name.startswith("register_") and manager.parse_hookimpl_opts(plugin, name) is None:
            raise PluginError(
                f"{name} is not marked with @hookimpl and would never be called", id="hook-unmarked"
            )
    if not any(manager.parse_hookimpl_opts(plugin, name) for name in dir(plugin)):
        raise PluginError(
            f"{shown(plugin)} implements no hook; point the entry point at an object with "
            "@hookimpl methods",
            id="hook-unmarked",
        )
