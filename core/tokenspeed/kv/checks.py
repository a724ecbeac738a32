"""What a model's cache groups and their backends' demands must be, checked before solving."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.errors import CapabilityError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tokenspeed.contracts.attention import CacheDemand
    from tokenspeed.contracts.model import CacheGroup
    from tokenspeed.kv.layout import ArenaLayout

KINDS = ("full", "window", "state")
MIN_BLOCK_TOKENS = 16
MAX_PAGE_IDS = 2**31 - 1
SPECULATION = ("none", "rows_per_position", "replay")


def check_groups(groups: Sequence[CacheGroup], block_tokens: int, *, first_layer: int = 0) -> None:
    """Check kinds, layers and names.

    Args:
        first_layer: of the model, or of the rank's pipeline stage.
    Raises:
        ConfigError: names what is wrong.
    """
    if block_tokens < MIN_BLOCK_TOKENS or block_tokens & (block_tokens - 1):
        raise ConfigError(
            f"block_tokens is {block_tokens}, allowed are powers of two from {MIN_BLOCK_TOKENS}; "
            "choose one, such as 128"
        )
    if not groups:
        raise ConfigError(
            "the model declares no cache group, at least one is needed; fix the model"
        )
    for group in groups:
        _check_group(group)
    if all(group.kind != "full" for group in groups):
        raise ConfigError(
            f"the model declares the cache groups {[group.name for group in groups]} and none of "
            "kind 'full', at least one is needed; declare a window group as full"
        )
    layers = [layer for group in groups for layer in group.layers]
    names = [group.name for group in groups]
    run = list(range(first_layer, first_layer + len(layers)))
    if sorted(layers) != run or len(set(names)) != len(names):
        raise ConfigError(
            f"cache groups {names} hold the layers {sorted(layers)}; allowed is every layer from "
            f"{first_layer} once, under different group names; fix the model's cache_groups"
        )


def check_pages(
    groups: Sequence[CacheGroup], demands: Mapping[str, CacheDemand], block_tokens: int
) -> None:
    """Check that every backend's pages divide a block and are of one size.

    Raises:
        CapabilityError: names group, page size and block size.
    """
    for group in groups:
        demand = demands[group.name]
        if demand.page_tokens and block_tokens % demand.page_tokens:
            raise CapabilityError(
                f"the attention backend of cache group {group.name!r} reads pages of "
                f"{demand.page_tokens} tokens, a block has {block_tokens}; allowed are divisors; "
                "use --block-tokens, or pin another backend with --attention",
                id="cache-unsupported",
            )
        widths = {field.shape[-1] for field in group.fields if field.name in demand.fields}
        if demand.page_tokens and len(widths) != 1:
            raise CapabilityError(
                f"the attention backend of cache group {group.name!r} reads the fields "
                f"{list(demand.fields)} in pages, the group's have {sorted(widths)} elements a "
                "row; one width is needed; pin another backend with --attention",
                id="cache-unsupported",
            )


def check_page_ids(layout: ArenaLayout) -> None:
    """Check that page ids fit into the tables' int32.

    Raises:
        CapabilityError: names group, ids and limit.
    """
    for index, group in enumerate(layout.groups):
        pages = layout.page_ids(index)
        num_ids = layout.num_blocks(index) * pages.per_block if pages else 0
        if num_ids > MAX_PAGE_IDS:
            raise CapabilityError(
                f"the pages of cache group {group.name!r} need {num_ids:,} ids, allowed are "
                f"{MAX_PAGE_IDS:,}: they lie at odd places; lower --kv-gib, or pin a backend "
                "that reads whole or packed pages with --attention",
                id="cache-unsupported",
            )


def _check_group(group: CacheGroup) -> None:
    if group.kind not in KINDS:
        raise ConfigError(
            f"cache group {group.name!r} is of kind {group.kind!r}, allowed are "
            f"{', '.join(KINDS)}; fix the model's cache_groups"
        )
    if (group.window > 0) != (group.kind == "window"):
        raise ConfigError(
            f"cache group {group.name!r} of kind {group.kind!r} has window {group.window}; allowed "
            "is 1 or more for a window group and 0 for others; fix the model's cache_groups"
        )
    if group.speculation not in SPECULATION:
        raise ConfigError(
            f"cache group {group.name!r} has speculation {group.speculation!r}, allowed are "
            f"{', '.join(SPECULATION)}; fix the model's cache_groups"
        )
    names = [field.name for field in group.fields]
    sizes = [size for field in group.fields for size in field.shape]
    if not names or len(set(names)) != len(names) or not sizes or min(sizes) < 1:
        raise ConfigError(
            f"cache group {group.name!r} has the fields {list(group.fields)}; allowed are one or "
            "more of different names and positive sizes; fix the model's cache_groups"
        )
