"""Registration: whole or nothing, and every refusal names hook, value and what is allowed."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import pytest
from tests.support.plugin_wheels import PluginSpace

from tokenspeed.contracts.kernel import KernelOffer, Operator
from tokenspeed.contracts.registration import Offer
from tokenspeed.errors import PluginError
from tokenspeed.hookspecs import hookimpl
from tokenspeed.plugins import load_plugins
from tokenspeed.plugins.manager import load_planned
from tokenspeed.plugins.manifest import Manifest
from tokenspeed.plugins.planning import plan_plugins
from tokenspeed.plugins.registrar import HOOKS, StagedRegistration, run_hooks
from tokenspeed.plugins.registry import Registry
from tokenspeed.plugins.slots import SLOT_OF_HOOK, SLOTS

LIVE = {slot.name: slot.version for slot in SLOTS.values() if slot.live}
MANIFEST = Manifest("acme", ">=1.0", "acme", ("*",), ("engine",), LIVE)


def register(plugin: object, registry: Registry | None = None) -> Registry:
    """Do what the manager does with a plugin object."""
    registry = registry or Registry()
    registration = StagedRegistration(MANIFEST, "engine", {})
    run_hooks(plugin, registration, registry.on_hook_call)
    registry.commit("acme", "1.0", registration.staged)
    return registry


def refusal(plugin: object, registry: Registry | None = None) -> str:
    with pytest.raises(PluginError) as caught:
        register(plugin, registry)
    return str(caught.value)


def offering(hook: str, *offers: Any) -> object:
    """Make a plugin whose one hook offers these."""

    def method(self: object, context: Any) -> None:
        for offer in offers:
            context.offer(offer)

    return type("Plugin", (), {hook: hookimpl(method)})()


def kernel(name: str = "k", operator: str = "acme.op", **options: Any) -> KernelOffer:
    return KernelOffer(operator, name, lambda: len, **options)


def operator(name: str = "acme.op") -> Operator:
    return Operator(name, len, {})


def test_every_hook_fills_a_known_slot() -> None:
    assert set(SLOT_OF_HOOK) == set(HOOKS)
    assert len(HOOKS) == 20


def model(name: str, **options: Any) -> Offer:
    return Offer("model", name, len, facts={"architectures": ("Acme",)}, **options)


def test_a_misspelled_hook_is_answered_with_the_nearest() -> None:
    text = refusal(offering("register_kernel", kernel()))
    assert "unknown hook 'register_kernel'" in text
    assert "did you mean 'register_kernels'" in text
    assert "API 1.0" in text


def test_a_hook_with_an_extra_argument_is_refused() -> None:
    class Plugin:
        @hookimpl
        def register_models(self, context: Any, extra: Any) -> None: ...

    text = refusal(Plugin())
    assert "extra" in text
    assert "register_models" in text
    assert "API 1.0" in text


def test_a_method_without_the_mark_is_refused_instead_of_ignored() -> None:
    class Plugin:
        def register_models(self, context: Any) -> None: ...

    assert "register_models is not marked with @hookimpl" in refusal(Plugin())
    assert "implements no hook" in refusal(object())


@pytest.mark.parametrize("hook", [hook for hook in HOOKS if not SLOTS[SLOT_OF_HOOK[hook]].live])
def test_offers_for_slots_of_later_versions_are_refused(hook: str) -> None:
    slot = SLOT_OF_HOOK[hook]
    text = refusal(offering(hook, Offer(slot, "x", len)))
    assert f"slot {slot} arrives in a later version" in text
    assert hook in text


def test_a_failure_in_the_second_of_three_registrations_leaves_the_registry_identical() -> None:
    class Plugin:
        @hookimpl
        def register_operators(self, context: Any) -> None:
            context.offer(operator())

        @hookimpl
        def register_kernels(self, context: Any) -> None:
            context.offer(kernel())
            raise RuntimeError("half-way")

        @hookimpl
        def register_models(self, context: Any) -> None:
            context.offer(model("m"))

    registry = register(offering("register_models", model("before")))
    before = registry.dump()
    assert "hook register_kernels raised RuntimeError: half-way" in refusal(Plugin(), registry)
    assert registry.dump() == before


def test_a_failed_commit_leaves_the_registry_identical() -> None:
    registry = register(offering("register_operators", operator()))
    before = registry.dump()
    text = refusal(offering("register_operators", operator("acme.new"), operator()), registry)
    assert "already declared by plugin acme" in text
    assert registry.dump() == before


@pytest.mark.parametrize(
    ("hook", "offers", "words"),
    [
        ("register_models", [Offer("sampler", "x", len)], ("'sampler', not model",)),
        ("register_models", [kernel()], ("is no Offer", "register_models takes")),
        ("register_kernels", [Offer("operator", "x", len)], ("is no KernelOffer",)),
        ("register_models", ["x"], ("'x' is no Offer",)),
        ("register_models", [model("x")] * 2, ("'x' is offered twice", "rename")),
        ("register_models", [model("x", band="FAST")], ("'x' has unknown band 'FAST'", "PORTABLE")),
        (
            "register_models",
            [model("x", requires={"dtpe": ("float32",)})],
            ("unknown trait 'dtpe'", "'dtype'"),
        ),
        (
            "register_models",
            [Offer("model", "x", len)],
            ("facts['architectures'] = None", "a tuple of names is needed"),
        ),
        (
            "register_models",
            [model("x", requires={"dtype": "bfloat16"})],
            ("'x' requires dtype = 'bfloat16', a tuple", "write 'dtype': ('bfloat16',)"),
        ),
        (
            "register_kernels",
            [kernel(requires={"block_tokens": 64})],
            ("'k' requires block_tokens = 64, a tuple", "write 'block_tokens': (64,)"),
        ),
        (
            "register_kernels",
            [kernel(requires={"block_tokens": (64, 48, 8)})],
            ("'k' requires block_tokens = (48, 8)", "powers of two from 16 to 65536"),
        ),
        (
            "register_attention_backends",
            [Offer("attention", "x", len, facts={"cache": {"page_tokens": 32}})],
            ("facts['cache'] = {'page_tokens': 32}", "CacheDemand is needed"),
        ),
        ("register_kernels", [kernel(operator="acme.po")], ("unknown operator 'acme.po'",)),
    ],
)
def test_a_wrong_offer_is_refused(hook: str, offers: list[Any], words: tuple[str, ...]) -> None:
    text = refusal(offering(hook, *offers), register(offering("register_operators", operator())))
    for word in words:
        assert word in text


def test_a_slot_that_the_manifest_does_not_name_is_refused(plugin_space: PluginSpace) -> None:
    from tokenspeed.plugins import load_plugins

    plugin_space.install("acme", slots='sampler = "1.0"')
    with pytest.raises(PluginError, match="slot model is not in the manifest"):
        load_plugins(("acme",), role="engine")


def test_hook_calls_after_the_freeze_are_counted_and_raise_when_strict() -> None:
    registry = Registry()
    registration = StagedRegistration(MANIFEST, "engine", {})
    manager = run_hooks(
        offering("register_models", model("x")), registration, registry.on_hook_call
    )
    registry.commit("acme", "1.0", registration.staged)
    assert registry.hook_calls_after_freeze == 0
    registry.freeze()
    with pytest.raises(PluginError):
        manager.hook.register_models(context=registration)
    assert registry.hook_calls_after_freeze == 1
    registry.freeze(strict=True)
    with pytest.raises(AssertionError, match="register_models was called after the freeze"):
        manager.hook.register_models(context=registration)
    with pytest.raises(PluginError, match="after the freeze"):
        registry.commit("late", "1.0", [])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": None}, "name None"),
        ({"name": ""}, "name ''"),
        ({"name": "a/b"}, "name 'a/b'"),
        ({"name": "a\nb"}, "name 'a\\nb'"),
        ({"slot": None}, "is for slot None"),
        ({"load": None}, "load is None, a callable"),
        ({"load": "json:loads"}, "load is 'json:loads'"),
        ({"band": None}, "unknown band None"),
        ({"band": []}, "unknown band []"),
        ({"band": "portable"}, "unknown band 'portable': did you mean 'PORTABLE'?"),
        ({"requires": None}, "requires is None"),
        ({"requires": {3: (1,)}}, "unknown trait 3"),
        (
            {"requires": {"dtype": "bfloat16"}},
            "requires dtype = 'bfloat16', a tuple of values is needed",
        ),
        ({"requires": {"head_dim": 64}}, "requires head_dim = 64, a tuple of values is needed"),
        ({"requires": {"dtype": None}}, "requires dtype = None, a tuple of values is needed"),
        ({"requires": {"dtype": ({},)}}, "requires dtype = ({},)"),
        ({"requires": {"head_dim": (float("inf"),)}}, "requires head_dim = (inf,)"),
        ({"facts": None}, "facts is None"),
    ],
)
def test_an_offer_of_wrong_types_is_refused_before_anybody_chooses(
    changes: dict[str, Any], words: str
) -> None:
    fields: dict[str, Any] = {"slot": "attention", "name": "x", "load": dict, "band": "PORTABLE"}
    text = refusal(offering("register_attention_backends", Offer(**(fields | changes))))
    assert words in text
    assert "[offer-invalid]" in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"band": "PORTABLE"}, "band is 'PORTABLE', a Band is needed"),
        ({"operator": None}, "operator is None"),
        ({"deterministic": "yes"}, "deterministic is 'yes'"),
        ({"score": 3}, "score is 3, a function"),
        ({"requires": {"dtype": "float32"}}, "requires dtype = 'float32'"),
    ],
)
def test_a_kernel_of_wrong_types_is_refused(changes: dict[str, Any], words: str) -> None:
    fields: dict[str, Any] = {"operator": "acme.op", "name": "k", "load": dict}
    assert words in refusal(offering("register_kernels", KernelOffer(**(fields | changes))))


def test_a_hook_that_swallows_a_refusal_has_not_registered() -> None:
    class Plugin:
        @hookimpl
        def register_models(self, context: Any) -> None:
            with contextlib.suppress(PluginError):
                context.offer(3)
            context.offer(model("one"))

    assert "3 is no Offer" in refusal(Plugin())


def test_a_hook_whose_body_never_runs_is_refused() -> None:
    class Generator:
        @hookimpl
        def register_models(self, context: Any) -> Any:
            yield context

    class Returning:
        @hookimpl
        def register_models(self, context: Any) -> Any:
            return [model("one")]

    for plugin in (Generator(), Returning()):
        assert "call context.offer in a plain function" in refusal(plugin)


@pytest.mark.parametrize("code", ["sys.exit(0)", "raise GeneratorExit", "raise BaseException(7)"])
@pytest.mark.parametrize("place", ["import", "hook"])
def test_a_plugin_ends_no_process(plugin_space: PluginSpace, place: str, code: str) -> None:
    top = f"import sys\n{code}\n" if place == "import" else "import sys\n"
    hook = code if place == "hook" else "pass"
    plugin_space.install(
        "acme",
        f"{top}class Plugin:\n    @hookimpl\n    def register_models(self, context):\n"
        f"        {hook}\nplugin = Plugin()\n",
    )
    with pytest.raises(PluginError, match="it ended with") as caught:
        load_plugins(("acme",), role="engine")
    assert caught.value.exit_code == 4


def test_an_object_that_raises_when_looked_at_is_one_plugins_error(
    plugin_space: PluginSpace,
) -> None:
    plugin_space.install(
        "acme",
        "class Plugin:\n    def __dir__(self):\n        raise RuntimeError('boo')\n"
        "plugin = Plugin()",
    )
    with pytest.raises(PluginError, match="registering raised RuntimeError: boo"):
        load_plugins(("acme",), role="engine")


def test_a_plugin_cannot_change_the_settings_of_the_plan(plugin_space: PluginSpace) -> None:
    plugin_space.install(
        "acme",
        "class Plugin:\n    @hookimpl\n    def register_models(self, context):\n"
        "        context.config['n'] = 5\nplugin = Plugin()\n",
        tail='[config.n]\ntype = "integer"\ndefault = 1\n',
    )
    plan = plan_plugins(("acme",))
    load_planned(plan, role="engine")
    assert next(item.config for item in plan.plugins if item.found.id == "acme") == {"n": 1}


def test_a_device_of_a_kind_that_the_manifest_does_not_name_is_refused() -> None:
    manifest = dataclasses.replace(MANIFEST, device_kinds=("acme",))
    registration = StagedRegistration(manifest, "engine", {})
    wrong = Offer("device", "card", len, facts={"kind": "acne"})
    with pytest.raises(PluginError, match="kind 'acne', the manifest's device_kinds are acme"):
        run_hooks(offering("register_devices", wrong), registration, lambda name: None)
