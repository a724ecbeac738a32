"""What an offer must state about itself, checked before anybody chooses by it.

Python checks no types: an offer that a plugin made of the wrong ones would fail later, in the
middle of a choice, where it takes every other plugin with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tokenspeed.contracts.attention import CacheDemand
from tokenspeed.contracts.capability import ANY, TRAITS
from tokenspeed.contracts.kernel import Band, KernelOffer, Operator
from tokenspeed.contracts.parser import PARSES
from tokenspeed.contracts.registration import Offer
from tokenspeed.errors import PluginError, shown
from tokenspeed.plugins.names import NAME_RULE, TRAIT_RULE, are_trait_values, is_name
from tokenspeed.plugins.nearest import suggestion

if TYPE_CHECKING:
    from typing import NoReturn

CLI = "cli"
REQUIRED_FACTS = {"model": "architectures", "parser": "parses"}
"""Slot -> the fact that its offers have: a tuple of names."""
DETECTING_FACTS = ("template_marks", "model_types")
"""Facts of a parser that may be left out: tuples of names too."""


def check_offer(
    slot: str, offer: Offer | KernelOffer | Operator, device_kinds: tuple[str, ...]
) -> None:
    """Check everything that an offer says of itself.

    Args:
        device_kinds: of the plugin's manifest.
    Raises:
        PluginError: a value has another type, or names what does not exist.
    """
    # A command's name has a space; the manifest states it, and there it was checked.
    if slot != CLI and not is_name(offer.name):
        _refuse(f"name {shown(offer.name)} of an offer for slot {slot}; allowed: {NAME_RULE}")
    if isinstance(offer, Operator):
        return
    if not callable(offer.load):
        _refuse(f"offer {offer.name!r}: load is {shown(offer.load)}, a callable is needed")
    _check_requires(offer.name, offer.requires)
    if isinstance(offer, KernelOffer):
        _check_kernel(offer)
        return
    if offer.slot != slot:
        _refuse(f"offer {offer.name!r} is for slot {shown(offer.slot)}, not {slot}")
    if not isinstance(offer.band, str) or offer.band not in Band.__members__:
        _refuse(f"offer {offer.name!r} has unknown band {shown(offer.band)}: {_near(offer.band)}")
    if not isinstance(offer.facts, Mapping):
        _refuse(f"offer {offer.name!r}: facts is {shown(offer.facts)}, a dict is needed")
    check_facts(offer, device_kinds)


def _check_requires(name: str, requires: Mapping[str, tuple[object, ...]]) -> None:
    """Check traits; a text in place of a tuple would be searched: "float16" is in "bfloat16"."""
    if not isinstance(requires, Mapping):
        _refuse(f"offer {name!r}: requires is {shown(requires)}, a dict of tuples is needed")
    for trait, values in requires.items():
        if trait not in TRAITS:
            _refuse(
                f"offer {name!r}: unknown trait {shown(trait)}: {suggestion(str(trait), TRAITS)}"
            )
        if not isinstance(values, tuple):
            _refuse(
                f"offer {name!r} requires {trait} = {shown(values)}, a tuple of values is needed; "
                f"write {trait!r}: ({shown(values)},)"
            )
        if not are_trait_values(values):
            _refuse(f"offer {name!r} requires {trait} = {shown(values)}; {TRAIT_RULE}")
    odd = [size for size in requires.get("block_tokens", ()) if size != ANY and not _is_block(size)]
    if odd:
        _refuse(
            f"offer {name!r} requires block_tokens = {shown(tuple(odd))}, which no engine has: "
            "blocks are powers of two from 16 to 65536 tokens; a backend that reads other pieces "
            "takes such blocks and states facts['cache'] = CacheDemand(page_tokens=...)"
        )


def _is_block(size: object) -> bool:
    return isinstance(size, int) and 16 <= size <= 65536 and not size & (size - 1)


def _check_kernel(offer: KernelOffer) -> None:
    if not isinstance(offer.operator, str):
        _refuse(f"kernel {offer.name!r}: operator is {shown(offer.operator)}, a name is needed")
    if not isinstance(offer.band, Band):
        _refuse(f"kernel {offer.name!r}: band is {shown(offer.band)}, a Band is needed")
    for fact in ("deterministic", "graph_safe"):
        if not isinstance(getattr(offer, fact), bool):
            have = shown(getattr(offer, fact))
            _refuse(f"kernel {offer.name!r}: {fact} is {have}, true or false is needed")
    if offer.score is not None and not callable(offer.score):
        _refuse(f"kernel {offer.name!r}: score is {shown(offer.score)}, a function is needed")


def _near(band: object) -> str:
    return suggestion(str(band).upper(), Band.__members__)


def _refuse(problem: str) -> NoReturn:
    raise PluginError(f"{problem}; correct the plugin", id="offer-invalid")


def check_facts(offer: Offer, device_kinds: tuple[str, ...]) -> None:
    """Check the facts of an offer.

    Args:
        device_kinds: of the plugin's manifest.
    Raises:
        PluginError: the slot's fact is missing, is no tuple of names, or names what does not exist.
    """
    if offer.slot == "device":
        _check_kind(str(offer.facts.get("kind", offer.name)), offer.name, device_kinds)
    demand = offer.facts.get("cache")
    if offer.slot == "attention" and not isinstance(demand, CacheDemand | None):
        raise PluginError(
            f"offer {offer.name!r} for slot attention has facts['cache'] = {demand!r}, a "
            "tokenspeed_sdk.CacheDemand is needed; write one, or leave it out",
            id="offer-invalid",
        )
    fact = REQUIRED_FACTS.get(offer.slot)
    if fact is None:
        return
    names = offer.facts.get(fact)
    if not _are_names(names) or not names or not all(map(is_name, names)):
        raise _no_names(offer, fact)
    if offer.slot == "parser":
        _check_parses(offer.name, names)
        for fact in DETECTING_FACTS:
            if not _are_names(offer.facts.get(fact, ())):
                raise _no_names(offer, fact)


def _are_names(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(name, str) and name for name in value)


def _no_names(offer: Offer, fact: str) -> PluginError:
    return PluginError(
        f"offer {offer.name!r} for slot {offer.slot} has facts[{fact!r}] = "
        f"{shown(offer.facts.get(fact))}, a tuple of names is needed; write "
        f"facts={{{fact!r}: (...,)}}",
        id="offer-invalid",
    )


def _check_kind(kind: str, name: str, device_kinds: tuple[str, ...]) -> None:
    if kind not in device_kinds and "*" not in device_kinds:
        raise PluginError(
            f"offer {name!r} for slot device is of kind {kind!r}, the manifest's device_kinds are "
            f"{', '.join(device_kinds) or 'none'}; make the two equal",
            id="offer-invalid",
        )


def _check_parses(parser: str, names: tuple[str, ...]) -> None:
    for name in names:
        if name not in PARSES:
            raise PluginError(
                f"parser {parser!r} parses {name!r}: {suggestion(name, PARSES)}", id="offer-invalid"
            )
