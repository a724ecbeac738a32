"""What the loaded plugins brought, and how far each came; frozen once an engine is built."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tokenspeed.contracts.binding import RegisteredOffer, SomeOffer
from tokenspeed.contracts.kernel import KernelOffer, Operator
from tokenspeed.errors import PluginError
from tokenspeed.log import LOGGER
from tokenspeed.plugins.nearest import suggestion

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tokenspeed.contracts.device import DeviceFacts
    from tokenspeed.contracts.registration import Offer

    Anything = Offer | KernelOffer | Operator


@dataclass(frozen=True, slots=True)
class PluginStatus:
    """How far a plugin came.

    Args:
        id, version, distribution: of the plugin; distribution is "tokenspeed" for the core's own.
        state: "registered", "not enabled", "no device", "not for this role", "quarantined", or
            "stated" (known by its manifest only).
        reason: why it is not registered; "" when it is.
        devices: what its probe found.
        package: top-level package that it came in; "" for the core's own.
    """

    id: str
    version: str
    distribution: str
    state: str
    reason: str = ""
    devices: tuple[DeviceFacts, ...] = ()
    package: str = ""


class Registry:
    """All offers by slot. Made by `load_plugins`; each test makes its own."""

    def __init__(self) -> None:
        self._offers: dict[str, dict[tuple[str, str], RegisteredOffer[Offer]]] = {}
        self._kernels: dict[str, dict[tuple[str, str], RegisteredOffer[KernelOffer]]] = {}
        self._operators: dict[str, Operator] = {}
        self._operator_owner: dict[str, str] = {}
        self._statuses: dict[str, PluginStatus] = {}
        self._is_frozen = False
        self._is_strict = False
        self.hook_calls_after_freeze = 0

    def commit(
        self,
        plugin_id: str,
        version: str,
        staged: Iterable[tuple[str, Anything]],
    ) -> None:
        """Take a plugin's whole registration, or none of it.

        Raises:
            PluginError: an operator name is taken, a kernel's operator is unknown, or the registry
                is frozen; the registry is then unchanged.
        """
        items = list(staged)
        self._check(plugin_id, [item for _, item in items])
        for slot, item in items:
            key = (plugin_id, item.name)
            if isinstance(item, Operator):
                self._operators[item.name] = item
                self._operator_owner[item.name] = plugin_id
            elif isinstance(item, KernelOffer):
                kernels = self._kernels.setdefault(item.operator, {})
                kernels[key] = RegisteredOffer(plugin_id, version, item)
            else:
                offers = self._offers.setdefault(slot, {})
                offers[key] = RegisteredOffer(plugin_id, version, item)

    def _check(self, plugin_id: str, items: list[Anything]) -> None:
        if self._is_frozen:
            raise PluginError(
                f"plugin {plugin_id} registers after the freeze; register earlier",
                id="registry-frozen",
            )
        known = dict(self._operator_owner)
        for item in items:
            if isinstance(item, Operator):
                if item.name in known:
                    raise PluginError(
                        f"operator {item.name!r} is already declared by plugin {known[item.name]}; "
                        "choose a name of your own",
                        id="operator-taken",
                    )
                known[item.name] = plugin_id
        for item in items:
            if isinstance(item, KernelOffer) and item.operator not in known:
                raise PluginError(
                    f"kernel {item.name!r} is for unknown operator {item.operator!r}; "
                    f"{suggestion(item.operator, known)}",
                    id="operator-unknown",
                )

    def offers(self, slot: str) -> tuple[RegisteredOffer[Offer], ...]:
        """Return a slot's offers, ordered by plugin id and name."""
        return _sorted(self._offers.get(slot, {}))

    def offering(self) -> frozenset[str]:
        """Return the ids of the plugins that offer anything."""
        keys = chain(*self._offers.values(), *self._kernels.values())
        return frozenset(plugin_id for plugin_id, _ in keys)

    @property
    def operators(self) -> Mapping[str, Operator]:
        """Declared operators by name."""
        return MappingProxyType(self._operators)

    def kernel_offers(self, operator_name: str) -> tuple[RegisteredOffer[KernelOffer], ...]:
        """Return an operator's kernels, ordered by plugin id and name."""
        return _sorted(self._kernels.get(operator_name, {}))

    @property
    def plugins(self) -> tuple[PluginStatus, ...]:
        """State of every known plugin, by id."""
        return tuple(self._statuses[plugin_id] for plugin_id in sorted(self._statuses))

    def set_status(self, status: PluginStatus) -> None:
        """Record how far a plugin came."""
        self._statuses[status.id] = status

    def freeze(self, *, strict: bool = False) -> None:
        """End registration. Later hook calls are counted; `strict` (tests) raises instead."""
        self._is_frozen, self._is_strict = True, strict

    def on_hook_call(self, hook_name: str) -> None:
        """Told by every hook call; after the freeze there must be none."""
        if not self._is_frozen:
            return
        self.hook_calls_after_freeze += 1
        if self._is_strict:
            raise AssertionError(f"hook {hook_name} was called after the freeze")
        if self.hook_calls_after_freeze == 1:
            LOGGER.error(
                "hook %s was called after the freeze; calls are counted, the first is logged [%s]",
                hook_name, "hook-after-freeze",
            )  # fmt: skip

    def dump(self) -> dict[str, Any]:
        """Return everything registered as JSON data, for comparison and listings."""
        return {
            "operators": dict(sorted(self._operator_owner.items())),
            "kernels": {name: _pins(self._kernels[name]) for name in sorted(self._kernels)},
            "offers": {slot: _pins(self._offers[slot]) for slot in sorted(self._offers)},
        }


def _sorted(
    table: Mapping[tuple[str, str], RegisteredOffer[SomeOffer]],
) -> tuple[RegisteredOffer[SomeOffer], ...]:
    return tuple(table[key] for key in sorted(table))


def _pins(table: Mapping[tuple[str, str], RegisteredOffer[Any]]) -> list[str]:
    return [offer.pin for offer in _sorted(table)]
