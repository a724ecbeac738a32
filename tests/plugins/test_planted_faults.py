"""The conformance kit finds faults that were planted, and says where; what is right passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.plugin_wheels import WheelFolder

from tokenspeed_sdk.conformance import run_conformance

if TYPE_CHECKING:
    from pathlib import Path

    from tokenspeed_sdk.conformance import Report

ATTENTION = """
class Plugin:
    @hookimpl
    def register_attention_backends(self, context):
        requires = {
            "device": ("*",), "arch": ("*",), "dtype": ("float32",), "block_tokens": ("*",),
            "head_dim": ("*",), "gqa_ratio": ("*",), "window": ("*",), "deterministic": (True,),
        }
        context.offer(Offer("attention", "paged", load, requires=requires))

def load(**options):
    import torch
    from tokenspeed_reference.attention import PagedAttention

    class Attention(PagedAttention):
        def attend(self, q_TNH, kv, metadata, *, scale, sinks_N=None, softcap=0.0):
            def right(q):
                return PagedAttention.attend(
                    self, q, kv, metadata, scale=scale, sinks_N=sinks_N, softcap=softcap
                )
            FAULT

    return Attention(**options)

plugin = Plugin()
"""
COMPUTES = "it-computes-what-its-operator-says"
DETERMINISTIC = "it-is-deterministic-if-it-says-so"
RIGHT = "return right(q_TNH)"
WRONG_AT_A_BLOCK_BOUNDARY = """out = right(q_TNH)
            for chunk in metadata.chunks:
                if chunk.num_keys % options["block_tokens"] == 0:
                    out[chunk.query.stop - 1] *= 0.9
            return out"""
CLAIMS_EVERY_HEAD_DIM = """q = q_TNH.clone()
            q[..., 100:] = 0
            return right(q)"""
DIFFERS_EACH_TIME = "return right(q_TNH) * (1 + 1e-6 * torch.rand(1))"

SAMPLER = """
class Plugin:
    @hookimpl
    def register_samplers(self, context):
        requires = {
            "device": ("*",), "arch": ("*",), "dtype": ("float32",), "deterministic": (True,),
        }
        context.offer(Offer("sampler", "seeded", load, requires=requires))

def load(**options):
    from dataclasses import replace
    from tokenspeed_reference.sampler import PhiloxSampler

    class Sampler(PhiloxSampler):
        def sample(self, logits_RV, batch):
            if batch.temperature_R is not None:
                batch = replace(batch, temperature_R=batch.temperature_R * FACTOR)
            return super().sample(logits_RV, batch)

    return Sampler(**options)

plugin = Plugin()
"""

DEVICE = """
class Plugin:
    @hookimpl
    def register_devices(self, context):
        context.offer(Offer("device", "acme", load))

def load():
    import torch
    from tokenspeed_reference.device import CpuRuntime
    from tokenspeed_sdk import DeviceFacts

    class Runtime(CpuRuntime):
        def __init__(self):
            super().__init__()
            self.facts = DeviceFacts("acme", "Acme One", "a1", 1, self.facts.memory_bytes)

        def allocate_arena(self, num_bytes):
            FAULT

    return Runtime()

plugin = Plugin()
"""
KERNEL = """
class Plugin:
    @hookimpl
    def register_kernels(self, context):
        requires = {"device": ("*",), "arch": ("*",), "dtype": ("float32",)}
        context.offer(KernelOffer("OPERATOR", "k", lambda: print, requires=requires))

plugin = Plugin()
"""
ARENA = "super().allocate_arena(num_bytes)"

STORE = """
class Plugin:
    @hookimpl
    def register_kv_stores(self, context):
        context.offer(Offer("kv_store", "memory", load))

def load(**options):
    from tokenspeed_reference.stores.memory import MemoryStore

    class Store(MemoryStore):
        def get(self, key, tag, into):
            ticket = super().get(key, tag, into)
            if into.nbytes > 4000:
                into[4000] ^= FLIPPED
            return ticket

    return Store(**options)

plugin = Plugin()
"""


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WheelFolder:
    folder = WheelFolder(tmp_path)
    monkeypatch.setenv("PYTHONPATH", folder.environ()["PYTHONPATH"])
    return folder


def failures(report: Report) -> dict[str, str]:
    return {check.id: check.message for check in report.checks if check.outcome == "failed"}


@pytest.mark.parametrize(
    ("fault", "check", "words"),
    [
        (RIGHT, "", ""),
        (WRONG_AT_A_BLOCK_BOUNDARY, COMPUTES, "attention.paged in float32"),
        (CLAIMS_EVERY_HEAD_DIM, COMPUTES, "head_dim 128"),
        (DIFFERS_EACH_TIME, DETERMINISTIC, "attention.paged, case"),
    ],
    ids=["right", "block boundary", "head_dim", "not deterministic"],
)
def test_attention_faults_are_found(
    wheels: WheelFolder, fault: str, check: str, words: str
) -> None:
    wheels.install("acme", ATTENTION.replace("FAULT", fault), slots='attention = "1.0"')
    report = run_conformance("acme", level="C2", only="C2/it-")
    found = failures(report)
    if not words:
        assert report.ok, report.text()
        return
    assert list(found) == [f"C2/{check}[attention/paged]"]
    assert words in found[f"C2/{check}[attention/paged]"]


@pytest.mark.parametrize(("factor", "is_right"), [("1.0", True), ("1.25", False)])
def test_a_skewed_sampler_is_found(wheels: WheelFolder, factor: str, is_right: bool) -> None:
    wheels.install("acme", SAMPLER.replace("FACTOR", factor), slots='sampler = "1.0"')
    report = run_conformance("acme", level="C2", only="C2/")
    assert report.ok == is_right, report.text()
    if not is_right:
        message = failures(report)[f"C2/{COMPUTES}[sampler/seeded]"]
        assert "sampling.distribution" in message
        assert "chi-square" in message


def test_a_sampler_with_numbers_of_its_own_is_found(wheels: WheelFolder) -> None:
    other = SAMPLER.replace(
        "batch = replace(batch, temperature_R=batch.temperature_R * FACTOR)",
        "batch = replace(batch, seeds_R=batch.seeds_R ^ 1)",
    )
    wheels.install("acme", other, slots='sampler = "1.0"')
    found = failures(run_conformance("acme", level="C2", only="sampler-is-right"))
    assert list(found) == ["C2/the-sampler-is-right[sampler/seeded-draws]"]
    assert "and the number is" in next(iter(found.values()))


@pytest.mark.parametrize(
    ("fault", "check", "words"),
    [
        (f"return {ARENA}", "", ""),
        (f"return {ARENA}.fill_(1)", "arena", "it is not zero"),
        (f"return {ARENA}.float()", "arena", "torch.float32"),
        (f"return {ARENA}[64:]", "arena", "it gives"),
        (
            "return super().allocate_arena(min(num_bytes, 1 << 20))",
            "too-large-an-arena",
            "DID NOT RAISE",
        ),
    ],
    ids=["right", "not zero", "dtype", "short", "too large"],
)
def test_faults_of_a_device_are_found(
    wheels: WheelFolder, fault: str, check: str, words: str
) -> None:
    body = DEVICE.replace("FAULT", fault)
    wheels.install("acme", body, slots='device = "1.0"', device_kinds='["acme"]')
    found = failures(run_conformance("acme", level="C2", only="C2/the-device"))
    assert list(found) == ([f"C2/the-device-is-right[device/acme-{check}]"] if check else [])
    assert all(words in message for message in found.values())


def test_a_kernel_silent_about_a_trait_of_its_requests_is_told_which(wheels: WheelFolder) -> None:
    body = KERNEL.replace("OPERATOR", "rotary.apply")
    wheels.install("acme", body, slots='operator = "1.0"')
    found = failures(run_conformance("acme", level="C2", only="C2/it-computes"))
    (message,) = found.values()
    assert "trait.head_dim: wanted" in message
    assert "not declared" in message


@pytest.mark.parametrize(("flipped", "is_right"), [("0", True), ("1", False)])
def test_a_corrupting_store_is_found(wheels: WheelFolder, flipped: str, is_right: bool) -> None:
    wheels.install("acme", STORE.replace("FLIPPED", flipped), slots='kv_store = "1.0"')
    report = run_conformance("acme", level="C2", only="C2/the-store")
    assert report.ok == is_right, report.text()
    if not is_right:
        message = failures(report)["C2/the-store-is-right[kv_store/memory-round-trip]"]
        assert "other bytes" in message


SPECULATOR = """
class Plugin:
    @hookimpl
    def register_speculators(self, context):
        context.offer(Offer("speculator", "lookup", load))

def load(**options):
    from tokenspeed_reference.ngram import NgramSpeculator

    class Drafter(NgramSpeculator):
        def start(self, request_id, token_ids):
            super().start(request_id, token_ids)
            FAULT

    return Drafter(**options)

plugin = Plugin()
"""


@pytest.mark.parametrize(("fault", "is_right"), [("pass", True), ("token_ids[-1] = 0", False)])
def test_a_speculator_that_changes_the_text_is_found(
    wheels: WheelFolder, fault: str, is_right: bool
) -> None:
    wheels.install("acme", SPECULATOR.replace("FAULT", fault), slots='speculator = "1.0"')
    report = run_conformance("acme", level="C2", only="speculator")
    assert report.ok == is_right, report.text()
    if not is_right:
        name = "C2/the-speculator-keeps-its-contract[speculator/lookup-inputs-stay]"
        assert "written to" in failures(report)[name]
