"""The checks of the plugin contract: one after another, each told in `acceptance/check_NN_*.py`.

What follows a check's own test looks at its edges. Checks 1 to 21 are files; the last one is a rule
about imports.
"""

from __future__ import annotations

import pytest
from tests.plugins.acceptance.check_01_named_plugin_raises_in_probe import (
    test_01_named_plugin_raises_in_probe,
)
from tests.plugins.acceptance.check_02_merely_installed import test_02_merely_installed
from tests.plugins.acceptance.check_03_probe_dies import test_03_probe_dies
from tests.plugins.acceptance.check_04_two_distributions_one_id import (
    test_04_two_distributions_one_id,
)
from tests.plugins.acceptance.check_05_misspelled_hook import test_05_misspelled_hook
from tests.plugins.acceptance.check_06_failure_half_way import test_06_failure_half_way
from tests.plugins.acceptance.check_07_fossils import (
    test_07_fossils,
    test_two_majors_back_is_refused_and_one_is_not,
)
from tests.plugins.acceptance.check_08_requests_fail_closed import (
    test_08_a_request_carries_a_trait_only_when_it_is_not_neutral,
    test_08_an_offer_silent_about_a_trait_is_refused_with_its_clause,
    test_08_inside_the_declared_domain_it_passes_and_one_step_outside_it_is_refused,
    test_08_requests_fail_closed,
)
from tests.plugins.acceptance.check_09_no_order_matters import test_09_no_order_matters
from tests.plugins.acceptance.check_10_explain_without_a_device import (
    explain,
    test_10_an_offer_that_is_no_candidate_is_named_with_the_nearest,
    test_10_every_kernel_of_the_model_is_explained,
    test_10_explain_without_a_device,
    test_10_why_not_says_every_clause,
)
from tests.plugins.acceptance.check_11_pins_and_force import (
    pinned_model,
    test_11_explain_shows_the_taint,
    test_11_pins_and_force,
    test_11_wrong_rules_are_refused_before_a_process_starts,
)
from tests.plugins.acceptance.check_12_one_plan_for_all_processes import (
    model,
    test_12_a_spare_worker_reports_the_plans_digest,
    test_12_a_spare_worker_with_another_version_names_itself,
    test_12_one_plan_for_all_processes,
)
from tests.plugins.acceptance.check_13_broken_model_file import test_13_broken_model_file
from tests.plugins.acceptance.check_14_lock_file import test_14_lock_file
from tests.plugins.acceptance.check_15_no_hook_after_freeze import (
    test_15_a_hook_call_after_the_freeze_raises_in_tests,
    test_15_no_hook_after_freeze,
)
from tests.plugins.acceptance.check_16_list_is_quick import test_16_list_is_quick
from tests.plugins.acceptance.check_17_plugins_new import (
    test_17_plugins_new,
    test_the_cover_is_small_and_covers_every_pair,
    test_what_is_rendered_is_built_conforms_and_serves,
)
from tests.plugins.acceptance.check_18_side_effects import test_18_side_effects
from tests.plugins.acceptance.check_19_store_that_corrupts import test_19_store_that_corrupts
from tests.plugins.acceptance.check_20_speculator_that_fails import test_20_speculator_that_fails
from tests.plugins.acceptance.check_21_misspelled_setting import test_21_misspelled_setting
from tests.support.source_tree import ROOT, files_under, imports_of

FIRST_PARTY = ("plugins_reference", "plugins_nvidia", "plugins_amd")


@pytest.mark.parametrize("folder", FIRST_PARTY)
def test_22_first_party_plugins_import_only_the_sdk(folder: str) -> None:
    own = folder.replace("plugins_", "tokenspeed_")
    seen, wrong = 0, []
    for file in files_under(folder):
        for found in imports_of(file):
            root = found.target.partition(".")[0]
            if root.startswith("tokenspeed"):
                seen += 1
                if root not in {"tokenspeed_sdk", own}:
                    wrong.append(f"{file}:{found.line} imports {found.target}")
    assert wrong == []
    assert seen, "no import of the sdk was found: the rule sees nothing"
