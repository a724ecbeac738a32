#include <algorithm>

#include "bindings/bind.h"
#include "bindings/views.h"
#include "scheduler/step.h"

namespace nb = nanobind;

namespace tokenspeed {
namespace {

template <class T>
struct Shown {
  using Array = Vector<T>;
};
template <class T, size_t N>
struct Shown<std::array<T, N>> {
  using Array = Matrix<T, N>;
};

template <class T>
nb::object ViewOf(auto& view, size_t which, const std::vector<T>& values) {
  return view.template Get<Vector<T>>(which, values.data(), {values.size()}, values.capacity());
}
template <class T, size_t N>
nb::object ViewOf(auto& view, size_t which, const std::vector<std::array<T, N>>& rows) {
  return view.template Get<Matrix<T, N>>(which, rows.data(), {rows.size(), N}, rows.capacity());
}

template <auto Member, size_t Which, class Data>
void DefView(nb::class_<View<Data>>& bound, const char* name, const char* doc) {
  using Value = typename std::decay_t<decltype(std::declval<Data>().*Member)>::value_type;
  bound.def_prop_ro(
      name,
      [](View<Data>& self) {
        return CachedArray<typename Shown<Value>::Array>{
            ViewOf(self, Which, (*self.data()).*Member)};
      },
      doc);
}

CachedArray<Cube<int32_t>> StateRows(View<StepPlan>& self) {
  const StepPlan& plan = *self.data();
  const auto groups = static_cast<size_t>(plan.num_state_groups);
  const auto entries = static_cast<size_t>(1 + plan.num_write_rows);
  const auto rows = static_cast<size_t>(plan.num_rows());
  const size_t capacity = groups == 0 ? rows : plan.state_rows.capacity() / (groups * entries);
  return {self.Get<Cube<int32_t>>(9, plan.state_rows.data(), {rows, groups, entries}, capacity)};
}

template <auto Member, size_t Which>
void DefTierView(nb::class_<View<StepPlan>>& bound, const char* name, const char* doc) {
  using Value = typename std::decay_t<decltype(std::declval<TierRows>().*Member)>::value_type;
  bound.def_prop_ro(
      name,
      [](View<StepPlan>& self) {
        return CachedArray<typename Shown<Value>::Array>{
            ViewOf(self, Which, self.data()->tier_rows.*Member)};
      },
      doc);
}

CachedArray<Rows<int32_t>> StoreTokens(View<StepPlan>& self) {
  const TierRows& rows = self.data()->tier_rows;
  const auto width = static_cast<size_t>(rows.block_tokens);
  const size_t capacity = width == 0 ? 0 : rows.store_tokens.capacity() / width;
  return {self.Get<Rows<int32_t>>(13, rows.store_tokens.data(), {rows.store_moves.size(), width},
                                  capacity)};
}

void BindStepPlan(nb::module_& m) {
  nb::class_<View<StepPlan>> plan(m, "StepPlan", R"(One step's work, as flat arrays.

R rows, T query tokens. Rows [0, num_decode_rows) are decodes, the rest are prefill chunks.
Arrays are read-only views without a copy; while one is held, its buffer is not written again. The
contract is `tokenspeed.contracts.step.StepPlan`.)");
  plan.def_prop_ro(
          "step_id", [](View<StepPlan>& self) { return self.data()->step_id; },
          "Number of the step, for `commit`; counts up from 1.")
      .def_prop_ro(
          "num_rows", [](View<StepPlan>& self) { return self.data()->num_rows(); },
          "R: requests that take part.")
      .def_prop_ro(
          "num_decode_rows", [](View<StepPlan>& self) { return self.data()->num_decode_rows; },
          "Rows that decode; they come first.")
      .def_prop_ro(
          "num_tokens", [](View<StepPlan>& self) { return self.data()->num_tokens(); },
          "T: query tokens of all rows.");
  DefView<&StepPlan::request_ids, 0>(plan, "request_ids", "(R,) engine request ids.");
  DefView<&StepPlan::slots, 1>(plan, "slots",
                               "(R,) persistent slot of each row's request, in [0, max_running).");
  DefView<&StepPlan::query_start, 2>(
      plan, "query_start",
      "(R + 1,) row r owns query tokens [query_start[r], query_start[r + 1]).");
  DefView<&StepPlan::context_tokens, 3>(plan, "context_tokens",
                                        "(R,) tokens of the request already in the cache: the "
                                        "position of its first query token.");
  DefView<&StepPlan::output_index, 4>(plan, "output_index",
                                      "(R,) index of the output token that this row samples; -1: "
                                      "it samples none (more prefill).");
  DefView<&StepPlan::token_ids, 5>(
      plan, "token_ids",
      "(T,) query tokens; -1 where the token is still on the device:\n"
      "the previous, uncommitted step samples it for this slot, or a drafter there drafts it.");
  DefView<&StepPlan::admitted, 6>(plan, "admitted",
                                  "(A, 2) (row, slot) of requests whose slot starts with this "
                                  "step: reset the slot first.");
  DefView<&StepPlan::block_updates, 7>(plan, "block_updates",
                                       "(U, 4) (slot, group, index, block id): block-table "
                                       "writes, applied before the step.");
  DefView<&StepPlan::copies, 8>(plan, "copies",
                                "(C, 4) (group, source block, target block, num_tokens): copied "
                                "before the step's writes.");
  plan.def_prop_ro("state_rows", &StateRows,
                   "(R, S, 1 + W) per row and state group, in group order: the row that is read "
                   "(-1: zeros),\nthen those that are written (-1: none): the first gets the state "
                   "before the row's drafts, each\nfurther one that after one more of them. W is 1 "
                   "in groups that replay.");
  DefView<&StepPlan::num_drafts, 14>(
      plan, "num_drafts",
      "(R,) drafts of each row: the last of its query tokens. While a step with drafts of the "
      "device is\nuncommitted, the next one is planned as if all of them were right: the device "
      "moves `context_tokens`\nback by those that were not, and reads the row of state that the "
      "last right one wrote.");
  DefTierView<&TierRows::transfers, 10>(
      plan, "transfers",
      "(X, 6) (transfer id, direction, group, device block, tier slot, layer range): direction 0\n"
      "stores to the host before the step's writes, 1 loads beside the step; layer range -1 is "
      "all layers.\nEach is acknowledged by `notify`.");
  DefTierView<&TierRows::store_moves, 11>(
      plan, "store_moves",
      "(Y, 4) (transfer id, direction, group, tier slot): direction 0 puts into the KV store, 1 "
      "gets.\nEach is acknowledged by `notify`.");
  DefTierView<&TierRows::store_keys, 12>(plan, "store_keys",
                                         "(Y, 16) key of each store move's record.");
  plan.def_prop_ro("store_tokens", &StoreTokens,
                   "(Y, block_tokens) tokens of each record's block, -1 behind the last; its tag.");
}

// Request id, its new tokens, finish reason, cached tokens, row.
using Entry = nb::typed<nb::tuple, int, nb::typed<nb::tuple, int, nb::ellipsis>, int, int, int>;
using Entries = nb::typed<nb::list, Entry>;

// One pass over the arrays: five lists and their zip cost a loop at batch 1 more than the commit.
Entries EntriesOf(const View<CommitResult>& view) {
  const CommitResult& result = *view.data();
  nb::list entries;
  size_t start = 0;
  for (size_t i = 0; i < result.request_ids.size(); ++i) {
    const auto count = static_cast<size_t>(result.num_tokens[i]);
    nb::object tokens = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(count)));
    if (!tokens.is_valid()) nb::raise_python_error();
    for (size_t j = 0; j < count; ++j) {
      PyObject* token = PyLong_FromLong(result.tokens[start + j]);
      if (token == nullptr) nb::raise_python_error();
      PyTuple_SET_ITEM(tokens.ptr(), static_cast<Py_ssize_t>(j), token);
    }
    start += std::max<size_t>(1, count);
    entries.append(nb::make_tuple(result.request_ids[i], tokens, result.finish_reasons[i],
                                  result.cached_tokens[i], result.rows[i]));
  }
  return nb::borrow<Entries>(entries);
}

void BindCommitResult(nb::module_& m) {
  nb::class_<View<CommitResult>> result(
      m, "CommitResult",
      "What became final, one entry per request that got tokens or ended.\n\n"
      "Read-only views; while one is held, its buffer is not written again.");
  DefView<&CommitResult::request_ids, 0>(result, "request_ids", "Engine request ids.");
  DefView<&CommitResult::tokens, 1>(
      result, "tokens",
      "The committed tokens, entry after entry; one -1 where the request ended without a new one.");
  DefView<&CommitResult::finish_reasons, 2>(result, "finish_reasons",
                                            "Index into FINISH_REASONS; 0 while it goes on.");
  DefView<&CommitResult::cached_tokens, 3>(
      result, "cached_tokens",
      "Prompt tokens taken from the cache, with the request's first token; -1 otherwise.");
  DefView<&CommitResult::rows, 4>(result, "rows",
                                  "Row of the plan that the entry comes from, -1 for none.");
  DefView<&CommitResult::num_tokens, 5>(result, "num_tokens",
                                        "New tokens of the entry; it owns max(1, this) values of "
                                        "`tokens`. All 0 or 1 without drafts.");
  DefView<&CommitResult::reports, 6>(
      result, "reports",
      "(F, 6) (entry, cached, created, recomputed after eviction, match end, why it ended there)\n"
      "with a request's first token: the three counts add up to its prompt; the last is an index\n"
      "into MATCH_ENDS.");
  result.def(
      "entries", &EntriesOf,
      "Return (request id, its new tokens, finish reason, cached tokens, row) of each entry.");
}

nb::tuple Names(const auto& names) {
  nb::list list;
  for (const char* name : names) list.append(nb::str(name));
  return nb::tuple(list);
}

}  // namespace

void BindPlan(nb::module_& m) {
  BindStepPlan(m);
  BindCommitResult(m);
  m.attr("FINISH_REASONS") = Names(kFinishReasons);
  m.attr("MATCH_ENDS") = Names(kMatchEnds);
}

}  // namespace tokenspeed
