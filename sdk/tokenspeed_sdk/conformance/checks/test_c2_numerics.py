"""C2: what is offered computes what it must, over samples of the domain that it declares."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tokenspeed.contracts.capability import unmet_clauses
from tokenspeed.kernels.judging import declared_traits
from tokenspeed_sdk import Domain, KernelOffer, Offer, Operator, PluginError
from tokenspeed_sdk.conformance import (
    communicator_check,
    device_check,
    sampler_check,
    speculator_check,
    store_check,
)
from tokenspeed_sdk.conformance.construct import (
    VOCAB_SIZE,
    construct,
    device_of,
    needs_another_device,
)
from tokenspeed_sdk.conformance.subject import Subject, SubjectOffer
from tokenspeed_sdk.testkit.rank_processes import RankProcesses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tokenspeed_sdk import DeviceRuntime, KVStore

SEED = 7


@pytest.fixture
def runtime(subject: Subject) -> DeviceRuntime:
    try:
        return device_of(subject)
    except PluginError as error:
        pytest.skip(error.message)


COMPUTES = ("operator", "attention", "moe", "sampler", "communicator")
"""Slots whose offers compute an operator; one of them has a definition in float64."""


@pytest.mark.slot(*COMPUTES)
def test_it_computes_what_its_operator_says(
    subject: Subject, offer: SubjectOffer, runtime: DeviceRuntime
) -> None:
    from tokenspeed.ops.backends import outcomes

    chosen = _implemented(offer)
    if _between_processes(offer):
        pytest.skip("its ranks are processes: compared by the test of ranks that are processes")
    num_cases = 0
    for operator, domain in _domains(subject, offer, runtime):
        for outcome in outcomes(operator, chosen, domain, device=runtime.torch_device()):
            num_cases += 1
            assert outcome.agrees, (
                f"{operator.name} in {domain.dtype}, case {outcome.case!r}: {outcome.where}; "
                f"{outcome.error:.3g} times what is allowed"
            )
    assert num_cases, (
        "no case of its operators lies in the domain that it declares; "
        f"{_unmet(subject, offer, runtime)}"
    )


@pytest.mark.slot("operator")
def test_a_new_operators_placement_line_is_right(offer: SubjectOffer) -> None:
    from tokenspeed_sdk.conformance.placement_check import check, ways_and_pairs

    if not isinstance(offer.offer, Operator):
        pytest.skip("a kernel has the line of its operator")
    if not offer.offer.placement:
        pytest.skip("it has none: every rank computes it whole")
    for ways in ways_and_pairs(offer.offer):
        check(offer.offer, *ways)


@pytest.mark.slot(*COMPUTES)
def test_it_is_deterministic_if_it_says_so(
    subject: Subject, offer: SubjectOffer, runtime: DeviceRuntime
) -> None:
    from tokenspeed.ops.alone import depends_on_batch
    from tokenspeed.ops.backends import implementation
    from tokenspeed.ops.compare import cases_within

    if _between_processes(offer):
        pytest.skip("its ranks are processes, and no collective has tokens")
    chosen = _implemented(offer)
    if True not in declared_traits(chosen).get("deterministic", ()):
        pytest.skip("it does not say so")
    for operator, domain in _domains(subject, offer, runtime):
        if not operator.tokens:
            continue
        function = implementation(operator, chosen)
        for case in cases_within(operator, domain):
            found = depends_on_batch(operator, function, case)
            assert not found, (
                f"{operator.name}, case {case.name!r}, computed alone and in its batch differs in "
                f"{found}; make a token's result the same in every batch, or do not declare it "
                "deterministic (of a KernelOffer: deterministic=False)"
            )


def _between_processes(offer: SubjectOffer) -> bool:
    """Say whether an offer is a communicator whose ranks cannot be threads of one process."""
    ranks = declared_traits(_implemented(offer)).get("ranks", ("threads",))
    return offer.slot == "communicator" and not {"threads", "*"} & set(ranks)


@pytest.fixture
def ranks(offer: SubjectOffer, runtime: DeviceRuntime, subject: Subject) -> Iterator[RankProcesses]:
    """Start ranks as processes, as many as the cases need and there are devices for."""
    if not _between_processes(offer):
        pytest.skip("its ranks are threads")
    if other := needs_another_device(offer, runtime):
        pytest.skip(other)
    kind = runtime.torch_device().type
    size = communicator_check.MOST_RANKS if kind == "cpu" else min(runtime.facts.count, 4)
    if size < 2:
        pytest.skip("each rank needs a device, and there is one")
    load = communicator_check.PluginOffer(subject.found.id, _implemented(offer).name)
    with RankProcesses(load, size, device=kind) as processes:
        yield processes


@pytest.mark.slot("communicator")
def test_ranks_that_are_processes_compute_what_their_operators_say(
    offer: SubjectOffer, ranks: RankProcesses
) -> None:
    declared = dict(declared_traits(_implemented(offer)))
    for dtype in map(str, declared.get("dtype", ("float32",))):
        for outcome in communicator_check.outcomes(ranks, declared, dtype, seed=SEED):
            assert outcome.agrees, (
                f"{dtype}, case {outcome.case!r}: {outcome.where}; {outcome.error:.3g} times what "
                "is allowed"
            )


@pytest.mark.slot("communicator")
def test_a_rank_that_fails_breaks_the_group_on_every_rank_in_time(ranks: RankProcesses) -> None:
    communicator_check.check_faults(ranks)


def _implemented(offer: SubjectOffer) -> Offer | KernelOffer:
    if isinstance(offer.offer, Operator):
        pytest.skip("an operator is a definition")
    return offer.offer


def _unmet(subject: Subject, offer: SubjectOffer, runtime: DeviceRuntime) -> str:
    """Say which traits requests for its operators carry that it does not take."""
    declared = declared_traits(_implemented(offer))
    clauses = {
        str(clause)
        for operator, domain in _domains(subject, offer, runtime)
        for case in (operator.cases(Domain(domain.dtype)) if operator.cases else ())
        for clause in unmet_clauses(case.traits, declared)
    }
    return f"requests carry {'; '.join(sorted(clauses)[:3]) or 'nothing that it lacks'}"


def _domains(
    subject: Subject, offer: SubjectOffer, runtime: DeviceRuntime
) -> Iterator[tuple[Operator, Domain]]:
    """Yield the operators that an offer computes, in each dtype that it declares."""
    from tokenspeed.ops import OPERATORS

    if other := needs_another_device(offer, runtime):
        pytest.skip(other)
    declared = declared_traits(offer.offer)
    own = {item.offer.name: item.offer for item in subject.offers("operator")}
    known = {**OPERATORS, **{k: v for k, v in own.items() if isinstance(v, Operator)}}
    operators = [item for item in known.values() if item.slot == offer.slot]
    if isinstance(offer.offer, KernelOffer):
        operators = [known[offer.offer.operator]]
    for operator in operators:
        for dtype in declared.get("dtype", ("float32",)):
            yield operator, Domain(str(dtype), declared, SEED)


@pytest.mark.slot("device")
@pytest.mark.parametrize("check", device_check.CHECKS)
def test_the_device_is_right(
    offer: SubjectOffer, runtime: DeviceRuntime, check: str, tmp_path: Path
) -> None:
    try:
        own = construct(offer, runtime, tmp_path)
    except PluginError as error:
        pytest.skip(error.message)
    device_check.CHECKS[check](own)


SAMPLER_CHECKS = {
    "greedy": sampler_check.check_greedy,
    "failed-rows": sampler_check.check_failed_rows,
    "scores": sampler_check.check_scores,
    "draws": sampler_check.check_draws,
    "rows-are-independent": sampler_check.check_rows_are_independent,
}


@pytest.mark.slot("sampler")
@pytest.mark.parametrize("check", SAMPLER_CHECKS)
def test_the_sampler_is_right(
    offer: SubjectOffer, runtime: DeviceRuntime, tmp_path: Path, check: str
) -> None:
    sampler = construct(offer, runtime, tmp_path)
    SAMPLER_CHECKS[check](sampler, VOCAB_SIZE, runtime.torch_device())


STORE_CHECKS = {
    "round-trip": store_check.check_round_trip,
    "replacement": store_check.check_replacement,
    "many-at-once": store_check.check_many_at_once,
    "bound": store_check.check_bound,
}


@pytest.mark.slot("kv_store")
@pytest.mark.parametrize("check", STORE_CHECKS)
def test_the_store_is_right(
    offer: SubjectOffer, runtime: DeviceRuntime, tmp_path: Path, check: str
) -> None:
    store = construct(offer, runtime, tmp_path)
    STORE_CHECKS[check](store)
    store.close()


@pytest.mark.slot("kv_store")
def test_a_damaged_record_is_never_given_out(
    offer: SubjectOffer, runtime: DeviceRuntime, tmp_path: Path
) -> None:
    def make() -> KVStore:
        store: KVStore = construct(offer, runtime, tmp_path)
        return store

    first = make()
    first.close()
    if not first.facts.durable:
        pytest.skip("it keeps nothing on disk")
    store_check.check_damage(make, tmp_path)


@pytest.mark.slot("speculator")
@pytest.mark.parametrize("check", speculator_check.CHECKS)
def test_the_speculator_keeps_its_contract(
    offer: SubjectOffer, runtime: DeviceRuntime, tmp_path: Path, check: str
) -> None:
    speculator_check.CHECKS[check](construct(offer, runtime, tmp_path), VOCAB_SIZE)


@pytest.fixture
def folder(checkpoint: Path | None) -> Path:
    if checkpoint is None:
        pytest.skip("no model was run; give a small checkpoint of its architecture: --checkpoint")
    return checkpoint


def test_a_model_answers_alike_however_its_steps_are_cut(
    subject: Subject, folder: Path, record_property: Callable[[str, object], None]
) -> None:
    from tokenspeed_sdk.conformance import model_check, serving

    record_property("windows", model_check.windows_of(subject, folder))
    whole = model_check.whole_answers(subject, folder)
    record_property("longest_prompt", max(len(answer.prompt_token_ids) for answer in whole))
    for answers in model_check.cut_answers(subject, folder):
        serving.assert_same_answers(answers, whole)


def test_a_model_answers_as_transformers(subject: Subject, folder: Path) -> None:
    from tokenspeed_sdk.conformance import model_check

    reference = model_check.reference_model(folder)
    if isinstance(reference, str):
        pytest.skip(reference)
    answers = model_check.whole_answers(subject, folder)
    model_check.assert_best_in_transformers(reference, answers)
