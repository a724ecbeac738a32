"""Writes docs/memory-map.svg and the tables of docs/memory-layout.md from the layout solver.

`python docs/generate_memory_map.py`. The geometries are published ones, cut to one rank; where a
number is not published it is assumed, and docs/memory-layout.md says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tokenspeed.contracts.attention import CacheDemand
from tokenspeed.contracts.model import CacheField, CacheGroup, gqa_fields
from tokenspeed.kv import describe, solve_layout

if TYPE_CHECKING:
    from tokenspeed.kv import ArenaLayout

PAGE = Path(__file__).with_name("memory-layout.md")
PICTURE = Path(__file__).with_name("memory-map.svg")
MARKS = ("<!-- layouts -->", "<!-- /layouts -->")
GIB = 2**30
ARENA_BYTES = 60 * GIB
BLOCK_TOKENS = 128
FLASH_PAGES = CacheDemand(page_tokens=64, packed=True, fields=("latent",))
COLOURS = {"full": "#4878a8", "window": "#6aa84f", "state": "#c27c3a"}


@dataclass(frozen=True, slots=True)
class Published:
    """A model's cache on one rank.

    Args:
        title: model, and the tensor-parallel degree it is cut to.
        demands: of backends that want more than strides.
    """

    title: str
    groups: tuple[CacheGroup, ...]
    demands: dict[str, CacheDemand]


def every_fourth_full(num_layers: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (full, linear) layers: every fourth is full, and the last."""
    full = tuple(i for i in range(num_layers) if i % 4 == 3 or i == num_layers - 1)
    return full, tuple(i for i in range(num_layers) if i not in full)


def kimi_k3(ranks: int = 8) -> Published:
    """24 MLA layers (512 + 64) and 69 KDA layers of 96 heads of 128 x 128, convolution kernel 4."""
    full, linear = every_fourth_full(93)
    heads = 96 // ranks
    state = (
        CacheField("state", (heads, 128, 128), "float32"),
        CacheField("conv", (3 * heads * 128, 3)),
    )
    groups = (
        CacheGroup("mla", "full", full, (CacheField("latent", (576,)),)),
        CacheGroup("kda", "state", linear, state),
    )
    return Published(f"Kimi-K3-like, TP {ranks}", groups, {"mla": FLASH_PAGES})


def qwen3_next() -> Published:
    """12 full layers of 2 kv heads x 256, 36 gated delta rule layers of 32 heads of 128 x 128."""
    full, linear = every_fourth_full(48)
    conv = CacheField("conv", (2 * 16 * 128 + 32 * 128, 3))
    state = (CacheField("state", (32, 128, 128), "float32"), conv)
    groups = (
        CacheGroup("full", "full", full, gqa_fields(2, 256)),
        CacheGroup("gdn", "state", linear, state),
    )
    return Published("Qwen3-Next-80B-A3B, TP 1", groups, {})


def gpt_oss() -> Published:
    """36 layers of 8 kv heads x 64, every other one with a window of 128 tokens."""
    fields = gqa_fields(8, 64)
    groups = (
        CacheGroup("full", "full", tuple(range(1, 36, 2)), fields),
        CacheGroup("window", "window", tuple(range(0, 36, 2)), fields, window=128),
    )
    return Published("gpt-oss-120b, TP 1", groups, {})


def deepseek_v32() -> Published:
    """61 MLA layers (512 + 64), each with an indexer key of 128 float8 and a float32 scale."""
    fields = (CacheField("latent", (576,)), CacheField("index", (132,), "uint8"))
    groups = (CacheGroup("mla", "full", tuple(range(61)), fields),)
    return Published("DeepSeek-V3.2, any TP", groups, {"mla": FLASH_PAGES})


def qwen3_8b() -> Published:
    """36 layers of 8 kv heads x 128."""
    groups = (CacheGroup("full", "full", tuple(range(36)), gqa_fields(8, 128)),)
    return Published("Qwen3-8B, TP 1", groups, {})


def published() -> tuple[Published, ...]:
    """Return every geometry of the page."""
    return kimi_k3(), qwen3_next(), gpt_oss(), deepseek_v32(), qwen3_8b()


def solved(model: Published) -> ArenaLayout:
    """Lay 60 GiB out for a model in bfloat16."""
    return solve_layout(
        model.groups,
        block_tokens=BLOCK_TOKENS,
        dtype="bfloat16",
        arena_bytes=ARENA_BYTES,
        demands=model.demands,
    )


def tables() -> str:
    """Return what the solver prints for each model."""
    parts = [f"**{model.title}**\n\n```\n{describe(solved(model))}\n```" for model in published()]
    return "\n\n".join(parts)


def page(text: str) -> str:
    """Return the page's text with its tables renewed."""
    head, rest = text.split(MARKS[0])
    return f"{head}{MARKS[0]}\n{tables()}\n{MARKS[1]}{rest.split(MARKS[1])[1]}"


def picture() -> str:
    """Return the memory map of the Kimi-K3-like layout as SVG."""
    layout = solved(kimi_k3())
    mla, kda = layout.groups
    rows = [
        ("block 0: the sentinel; padding points here", []),
        (
            f"mla: {mla.packing} blocks of 128 tokens",
            [(f"b{i}", "full") for i in range(mla.packing)],
        ),
        ("kda: one snapshot", [(f"{len(kda.layers)} layers of state and convolution", "state")]),
        ("mla: other sequences' blocks", [(f"b{i}", "full") for i in range(mla.packing)]),
    ]
    body = [_row(place, label, cells) for place, (label, cells) in enumerate(rows)]
    title = (
        f"{layout.num_physical_blocks:,} physical blocks of {layout.physical_bytes:,} bytes; each "
        "belongs to one group while anything lives in it"
    )
    zoom = _zoom(len(rows), f"one mla block ({mla.logical_bytes:,} bytes)", len(mla.layers))
    height = 70 + 62 * (len(rows) + 1)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="860" height="{height}" '
        f'viewBox="0 0 860 {height}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="860" height="{height}" fill="white"/>\n'
        f'<text x="20" y="28" font-size="14">{title}</text>\n'
        + "\n".join([*body, zoom])
        + "\n</svg>\n"
    )


def _row(place: int, label: str, cells: list[tuple[str, str]]) -> str:
    top = 62 + 62 * place
    parts = [
        f'<text x="20" y="{top - 6}">physical block {place}: {label}</text>'
        if cells
        else f'<text x="20" y="{top - 6}">physical {label}</text>',
        f'<rect x="20" y="{top}" width="820" height="34" fill="#eeeeee" stroke="black"/>',
    ]
    parts += _cells(top, [(text, COLOURS[kind]) for text, kind in cells])
    return "\n".join(parts)


def _zoom(place: int, label: str, num_layers: int) -> str:
    top = 62 + 62 * place
    cells = [(f"L{layer}", COLOURS["full"]) for layer in range(num_layers)]
    head = (
        f'<text x="20" y="{top - 6}">{label}: latents of {num_layers} layers, side by side</text>'
    )
    return "\n".join([head, *_cells(top, cells)])


def _cells(top: int, cells: list[tuple[str, str]]) -> list[str]:
    width = 820 / max(len(cells), 1)
    parts = []
    for index, (text, colour) in enumerate(cells):
        left = 20 + index * width
        parts.append(
            f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="34" fill="{colour}" '
            'stroke="black"/>'
        )
        parts.append(
            f'<text x="{left + width / 2:.1f}" y="{top + 21}" fill="white" '
            f'text-anchor="middle">{text}</text>'
        )
    return parts


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    PICTURE.write_text(picture(), encoding="utf-8")
