"""The plugin under test: its metadata at once, its offers when a check of C1 or later asks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tokenspeed.plugins.discovery import FoundPlugin, discover
from tokenspeed.plugins.nearest import suggestion
from tokenspeed.plugins.registrar import StagedRegistration, run_hooks
from tokenspeed.plugins.settings import parse_settings
from tokenspeed.plugins.targets import resolve
from tokenspeed_sdk import KernelOffer, Operator, PluginError

if TYPE_CHECKING:
    from tokenspeed.plugins.manifest import Manifest
    from tokenspeed_sdk import Offer


@dataclass(frozen=True, slots=True)
class SubjectOffer:
    """One thing that the plugin offers."""

    slot: str
    offer: Offer | KernelOffer | Operator

    @property
    def label(self) -> str:
        """slot/name; of a kernel its operator and name."""
        if isinstance(self.offer, KernelOffer):
            return f"{self.offer.operator}/{self.offer.name}"
        return f"{self.slot}/{self.offer.name}"


class Subject:
    """A plugin that is installed here."""

    def __init__(self, found: FoundPlugin) -> None:
        self.found = found

    @classmethod
    def find(cls, plugin_id: str) -> Subject:
        """Look it up among what is installed.

        Raises:
            PluginError: no distribution has it.
        """
        installed = discover()
        if plugin_id not in installed:
            raise PluginError(
                f"unknown plugin {plugin_id!r}; {suggestion(plugin_id, installed)}",
                id="plugin-unknown",
            )
        return cls(installed[plugin_id])

    @property
    def manifest(self) -> Manifest:
        """The parsed manifest; a plugin without a valid one fails the check that asks."""
        assert self.found.manifest is not None, self.found.problem
        return self.found.manifest

    def facts(self) -> dict[str, Any]:
        """Return id, version and distribution, for the report."""
        found = self.found
        return {"id": found.id, "version": found.version, "distribution": found.distribution}

    def offers(self, *slots: str) -> tuple[SubjectOffer, ...]:
        """Return its offers for these slots, or all; empty if it does not load at all."""
        return tuple(offer for offer in self._staged if not slots or offer.slot in slots)

    def register(self, role: str) -> tuple[SubjectOffer, ...]:
        """Import the plugin and call its hooks as a process of this role does."""
        config = parse_settings((), {self.found.id: self.manifest})[self.found.id]
        registration = StagedRegistration(self.manifest, role, config)
        run_hooks(resolve(self.found.target), registration, lambda name: None)
        return tuple(SubjectOffer(slot, offer) for slot, offer in registration.staged)

    @cached_property
    def _staged(self) -> tuple[SubjectOffer, ...]:
        if self.found.manifest is None:
            return ()
        try:
            return self.register("engine" if "engine" in self.manifest.roles else "cli")
        except Exception:  # the check that loads it reports why
            return ()
