"""TokenSpeed plugin granite: what it offers; nothing heavy is imported before it is chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed_sdk import Band, CacheDemand, KernelOffer, Offer, hookimpl, lazy

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenspeed_sdk import Registration

PAGE_TOKENS = 32
BLOCK_TOKENS = (32, 64, 128, 256, 512, 1024)
"""Sizes of logical blocks that pages divide."""
DTYPES = ("float32", "bfloat16", "float16")
KERNELS: dict[str, tuple[str, bool, dict[str, tuple[object, ...]]]] = {
    "norm.rms": ("rms_norm", True, {}),
    "norm.add_rms": ("add_rms_norm", True, {}),
    "activation.silu_mul": ("silu_mul", True, {}),
    "rotary.apply": ("apply_rotary", True, {"head_dim": ("*",)}),
    "linear.dense": ("linear", False, {}),
}
"""Operator -> function of `kernels`, whether a row's result is the same in any batch, traits."""


def _build(target: str) -> Callable[..., Any]:
    """Return a function that imports `target` of this package when it is called, and calls it."""
    return lambda **options: lazy(f"{__name__}.{target}")()(**options)


def _requires(*dtypes: str, **traits: tuple[object, ...]) -> dict[str, tuple[object, ...]]:
    return {"device": ("granite",), "arch": ("g1",), "dtype": dtypes, **traits}


class GranitePlugin:
    """Says what this wheel offers."""

    @hookimpl
    def register_devices(self, context: Registration) -> None:
        """Offer the card."""
        context.offer(Offer("device", "card", _build("device:Runtime"), facts={"kind": "granite"}))

    @hookimpl
    def register_attention_backends(self, context: Registration) -> None:
        """Offer attention over pages of 32 tokens."""
        requires = _requires(
            *DTYPES,
            head_dim=("*",),
            gqa_ratio=("*",),
            block_tokens=BLOCK_TOKENS,
            window=("*",),
            sinks=(True,),
            softcap=("*",),
            deterministic=(True,),
        )
        context.offer(
            Offer(
                "attention",
                "stream",
                _build("attention:Attention"),
                band="SPECIALIZED",
                requires=requires,
                facts={"cache": CacheDemand(page_tokens=PAGE_TOKENS)},
            )
        )

    @hookimpl
    def register_samplers(self, context: Registration) -> None:
        """Offer the sampler."""
        requires = _requires("float32", deterministic=(True,))
        load = _build("sampler:Sampler")
        context.offer(Offer("sampler", "inverse", load, band="SPECIALIZED", requires=requires))

    @hookimpl
    def register_kernels(self, context: Registration) -> None:
        """Offer the kernels."""
        for operator, (name, is_deterministic, traits) in KERNELS.items():
            context.offer(
                KernelOffer(
                    operator,
                    f"{name}_granite_g1",
                    lazy(f"{__name__}.kernels:{name}"),
                    band=Band.SPECIALIZED,
                    requires=_requires(*DTYPES, **traits),
                    deterministic=is_deterministic,
                )
            )

    @hookimpl
    def register_kv_stores(self, context: Registration) -> None:
        """Offer the store: `--kv-store granite/compressed`."""
        context.offer(Offer("kv_store", "compressed", _build("kv_store:Store")))


plugin = GranitePlugin()
