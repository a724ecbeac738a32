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

template <size_t N>
Matrix<int32_t> View(const std::vector<std::array<int32_t, N>>& rows, nb::handle owner) {
  return Matrix<int32_t>(rows.empty() ? nullptr : rows.front().data(), {rows.size(), N}, owner);
}

template <auto Member, class Class>
void DefView(Class& bound, const char* name) {
  using Owner = typename Class::Type;
  bound.def_prop_ro(name, [](nb::handle_t<Owner> self) {
    return View(nb::cast<const Owner&>(self).*Member, self);
  });
}

}  // namespace

void BindPlan(nb::module_& m) {
  nb::class_<StepPlan> plan(m, "StepPlan");
  plan.def_ro("step_id", &StepPlan::step_id)
      .def_prop_ro("num_rows", &StepPlan::num_rows)
      .def_ro("num_decode_rows", &StepPlan::num_decode_rows)
      .def_prop_ro("num_tokens", &StepPlan::num_tokens);
  DefView<&StepPlan::request_ids>(plan, "request_ids");
  DefView<&StepPlan::slots>(plan, "slots");
  DefView<&StepPlan::query_start>(plan, "query_start");
  DefView<&StepPlan::context_tokens>(plan, "context_tokens");
  DefView<&StepPlan::output_index>(plan, "output_index");
  DefView<&StepPlan::token_ids>(plan, "token_ids");
  DefView<&StepPlan::admitted>(plan, "admitted");
  DefView<&StepPlan::block_updates>(plan, "block_updates");
  DefView<&StepPlan::copies>(plan, "copies");

  nb::class_<CommitResult> result(m, "CommitResult");
  DefView<&CommitResult::request_ids>(result, "request_ids");
  DefView<&CommitResult::tokens>(result, "tokens");
  DefView<&CommitResult::finish_reasons>(result, "finish_reasons");
  DefView<&CommitResult::cached_tokens>(result, "cached_tokens");
  DefView<&CommitResult::rows>(result, "rows");

  nb::list reasons;
  for (const char* reason : kFinishReasons) reasons.append(nb::str(reason));
  m.attr("FINISH_REASONS") = nb::tuple(reasons);
}

}  // namespace tokenspeed
