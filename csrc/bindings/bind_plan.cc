#include <nanobind/stl/shared_ptr.h>

#include "bindings/bind.h"
#include "scheduler/step.h"

namespace nb = nanobind;

namespace tokenspeed {
namespace {

// Read-only view of a vector; the array keeps `owner`, which owns the vector, alive.
template <class T>
Vector<T> View(const std::vector<T>& values, nb::handle owner) {
  return Vector<T>(values.data(), {values.size()}, owner);
}

template <class T, size_t N>
Matrix<T, N> View(const std::vector<std::array<T, N>>& rows, nb::handle owner) {
  return Matrix<T, N>(rows.empty() ? nullptr : rows.front().data(), {rows.size(), N}, owner);
}

Rows<int32_t> StoreTokens(nb::handle_t<StepPlan> self) {
  const StepPlan& plan = nb::cast<const StepPlan&>(self);
  const size_t width = static_cast<size_t>(plan.block_tokens);
  return Rows<int32_t>(plan.store_tokens.data(), {plan.store_moves.size(), width}, self);
}

template <auto Member, class Class>
void DefView(Class& bound, const char* name, const char* doc) {
  using Owner = typename Class::Type;
  bound.def_prop_ro(
      name,
      [](nb::handle_t<Owner> self) { return View(nb::cast<const Owner&>(self).*Member, self); },
      doc);
}

void BindStepPlan(nb::module_& m) {
  nb::class_<StepPlan> plan(m, "StepPlan", R"(One step's work, as flat arrays.

R rows, T query tokens. Rows [0, num_decode_rows) are decodes, the rest are prefill chunks.
Arrays are read-only views without a copy; each keeps the plan alive. The contract is
`tokenspeed.contracts.step.StepPlan`.)");
  plan.def_ro("step_id", &StepPlan::step_id, "Number of the step, for `commit`; counts up from 1.")
      .def_prop_ro("num_rows", &StepPlan::num_rows, "R: requests that take part.")
      .def_ro("num_decode_rows", &StepPlan::num_decode_rows, "Rows that decode; they come first.")
      .def_prop_ro("num_tokens", &StepPlan::num_tokens, "T: query tokens of all rows.");
  DefView<&StepPlan::request_ids>(plan, "request_ids", "(R,) engine request ids.");
  DefView<&StepPlan::slots>(plan, "slots",
                            "(R,) persistent slot of each row's request, in [0, max_running).");
  DefView<&StepPlan::query_start>(
      plan, "query_start",
      "(R + 1,) row r owns query tokens [query_start[r], query_start[r + 1]).");
  DefView<&StepPlan::context_tokens>(plan, "context_tokens",
                                     "(R,) tokens of the request already in the cache: the "
                                     "position of its first query token.");
  DefView<&StepPlan::output_index>(plan, "output_index",
                                   "(R,) index of the output token that this row samples; -1: it "
                                   "samples none (more prefill).");
  DefView<&StepPlan::token_ids>(plan, "token_ids",
                                "(T,) query tokens; -1 where the token is still on the device:\n"
                                "the previous, uncommitted step samples it for this slot.");
  DefView<&StepPlan::admitted>(plan, "admitted",
                               "(A, 2) (row, slot) of requests whose slot starts with this step: "
                               "reset the slot first.");
  DefView<&StepPlan::block_updates>(plan, "block_updates",
                                    "(U, 4) (slot, group, index, block id): block-table writes, "
                                    "applied before the step.");
  DefView<&StepPlan::copies>(plan, "copies",
                             "(C, 4) (group, source block, target block, num_tokens): copied "
                             "before the step's writes.");
  DefView<&StepPlan::transfers>(
      plan, "transfers",
      "(X, 6) (transfer id, direction, group, device block, tier slot, layer range): direction 0\n"
      "stores to the host before the step's writes, 1 loads beside the step; layer range -1 is "
      "all layers.\nEach is acknowledged by `notify`.");
  DefView<&StepPlan::store_moves>(plan, "store_moves",
                                  "(Y, 4) (transfer id, direction, group, tier slot): direction 0 "
                                  "puts into the KV store, 1 gets.\nEach is acknowledged by "
                                  "`notify`.");
  DefView<&StepPlan::store_keys>(plan, "store_keys", "(Y, 16) key of each store move's record.");
  plan.def_prop_ro("store_tokens", &StoreTokens,
                   "(Y, block_tokens) tokens of each record's block, -1 behind the last; its tag.");
}

void BindCommitResult(nb::module_& m) {
  nb::class_<CommitResult> result(
      m, "CommitResult",
      "What became final, one entry per request that got a token or ended.\n\n"
      "Read-only views that keep the result alive.");
  DefView<&CommitResult::request_ids>(result, "request_ids", "Engine request ids.");
  DefView<&CommitResult::tokens>(
      result, "tokens", "The committed token, -1 where the request ended without a new one.");
  DefView<&CommitResult::finish_reasons>(result, "finish_reasons",
                                         "Index into FINISH_REASONS; 0 while it goes on.");
  DefView<&CommitResult::cached_tokens>(
      result, "cached_tokens",
      "Prompt tokens taken from the cache, with the request's first token; -1 otherwise.");
  DefView<&CommitResult::rows>(result, "rows",
                               "Row of the plan that the entry comes from, -1 for none.");
}

}  // namespace

void BindPlan(nb::module_& m) {
  BindStepPlan(m);
  BindCommitResult(m);
  nb::list reasons;
  for (const char* reason : kFinishReasons) reasons.append(nb::str(reason));
  m.attr("FINISH_REASONS") = nb::tuple(reasons);
}

}  // namespace tokenspeed
