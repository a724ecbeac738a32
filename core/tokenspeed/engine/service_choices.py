"""The choices of what stands beside the model: KV store, speculator, grammars, policy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tokenspeed.contracts.speculator import SpeculatorFacts
from tokenspeed.engine.deciding import Deciding
from tokenspeed.engine.grammars import Grammars
from tokenspeed.engine.policy_guard import GuardedPolicy
from tokenspeed.engine.store_guard import GuardedStore
from tokenspeed.errors import PluginError

if TYPE_CHECKING:
    from tokenspeed.contracts.grammar import GrammarEngine, GrammarVocabulary
    from tokenspeed.contracts.kv_store import KVStore
    from tokenspeed.contracts.speculator import Speculator
    from tokenspeed.engine.sizes import EngineSizes
    from tokenspeed.kernels import Decision

SPECULATOR_METHODS = ("start", "extend", "propose", "end")


class ServiceChoices(Deciding):
    """Chooses and loads what the model does not compute with."""

    def check_kv_store(self) -> None:
        """Check that the store that is asked for is offered; it is opened when its name is known.

        Raises:
            CapabilityError: no loaded plugin offers it.
        """
        if self._config.kv_store:
            self._offers_named("kv_store", self._config.kv_store)

    def kv_store(self, namespace: str, *, rank: int = 0, ranks: int = 1) -> GuardedStore | None:
        """Open the store behind the host tier; None where none is asked for.

        Args:
            rank, ranks: which of the replica's this one is; each has a store with an equal part of
                the capacity, in a folder of its own.
        Raises:
            CapabilityError: no loaded plugin offers it.
        """
        config, decision = self._config, self.named("kv_store")
        if decision is None:
            return None
        folder = config.kv_store_folder
        store: KVStore = self._load(
            "kv_store",
            decision,
            namespace=namespace,
            folder=str(Path(folder) / f"rank{rank}") if folder and ranks > 1 else folder,
            capacity_bytes=int(config.kv_store_gib * (1 << 30)) // ranks,
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
