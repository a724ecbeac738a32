#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>

#include "bindings/bind.h"
#include "bindings/scheduler_docs.h"
#include "scheduler/scheduler.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace tokenspeed {
namespace {

using Ids = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Description =
    nb::typed<nb::dict, nb::str, nb::typed<nb::list, nb::typed<nb::dict, nb::str, nb::any>>>;
using Flags = nb::ndarray<const bool, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::span<const int32_t> Span(const Ids& ids) { return {ids.data(), ids.size()}; }
std::span<const int32_t> Span(const std::optional<Ids>& ids) {
  return ids ? Span(*ids) : std::span<const int32_t>();
}

void Submit(Scheduler& self, int64_t request_id, const Ids& prompt_ids,
            const std::optional<Ids>& output_ids, int32_t max_new_tokens, int32_t min_new_tokens,
            const std::optional<Ids>& stop_token_ids, int32_t priority, const nb::bytes& salt,
            bool match_prefix, int64_t deadline_us, int64_t now_us) {
  self.Submit({.id = RequestId(request_id),
               .prompt = Span(prompt_ids),
               .outputs = Span(output_ids),
               .max_new_tokens = max_new_tokens,
               .min_new_tokens = min_new_tokens,
               .stop_ids = Span(stop_token_ids),
               .priority = priority,
               .salt = std::string(salt.c_str(), salt.size()),
               .match_prefix = match_prefix,
               .deadline_us = deadline_us},
              now_us);
}

bool AbortById(Scheduler& self, int64_t request_id, int64_t now_us) {
  return self.AbortRequest(RequestId(request_id), now_us);
}

bool StopById(Scheduler& self, int64_t request_id, int64_t now_us) {
  return self.StopRequest(RequestId(request_id), now_us);
}

CommitResult Commit(Scheduler& self, int64_t step_id, const Ids& tokens,
                    const std::optional<Flags>& failed, int64_t now_us) {
  const std::span<const bool> flags =
      failed ? std::span(failed->data(), failed->size()) : std::span<const bool>();
  return self.Commit(step_id, Span(tokens), flags, now_us);
}

std::optional<std::shared_ptr<StepPlan>> Plan(Scheduler& self, int64_t now_us) {
  // Python may keep the plan; its views are read only and nothing else of it is exposed.
  if (auto plan = self.Plan(now_us)) return std::const_pointer_cast<StepPlan>(plan);
  return std::nullopt;
}

nb::typed<nb::dict, nb::str, nb::int_> Stats(const Scheduler& self) {
  nb::dict stats;
  for (const auto& [name, value] : self.Stats()) stats[name.c_str()] = value;
  return stats;
}

Description DescribeState(Scheduler& self) {
  nb::list requests, physical_blocks;
  for (const RequestView& view : self.Requests()) {
    nb::dict request;
    request["id"] = view.id.value;
    request["state"] = view.state;
    request["priority"] = view.priority;
    request["slot"] = view.slot;
    request["computed_tokens"] = view.computed_tokens;
    request["blocks"] = nb::cast(view.blocks);
    requests.append(request);
  }
  for (const PhysicalView& view : self.PhysicalBlocks()) {
    nb::dict block;
    block["id"] = view.id;
    block["group"] = view.group;
    block["refs"] = view.refs;
    physical_blocks.append(block);
  }
  nb::dict state;
  state["requests"] = requests;
  state["physical_blocks"] = physical_blocks;
  return state;
}

}  // namespace

void BindScheduler(nb::module_& m) {
  nb::class_<Scheduler> scheduler(m, "Scheduler", docs::kScheduler);
  scheduler.def(nb::init<const SchedulerConfig&>(), "config"_a)
      .def("submit", &Submit, "request_id"_a, "prompt_ids"_a, nb::kw_only(),
           "output_ids"_a = nb::none(), "max_new_tokens"_a = 0, "min_new_tokens"_a = 0,
           "stop_token_ids"_a = nb::none(), "priority"_a = 0,
           nb::arg("salt").sig("b''") = nb::bytes(""), "match_prefix"_a = true, "deadline_us"_a = 0,
           "now_us"_a, docs::kSubmit)
      .def("abort", &AbortById, "request_id"_a, nb::kw_only(), "now_us"_a, docs::kAbort)
      .def("stop", &StopById, "request_id"_a, nb::kw_only(), "now_us"_a, docs::kStop)
      .def("plan", &Plan, nb::kw_only(), "now_us"_a, docs::kPlan)
      .def("commit", &Commit, "step_id"_a, "tokens"_a, nb::kw_only(), "failed"_a = nb::none(),
           "now_us"_a, docs::kCommit)
      .def("take_ended", &Scheduler::TakeEnded, docs::kTakeEnded)
      .def("has_work", &Scheduler::HasWork, docs::kHasWork)
      .def("next_deadline_us", &Scheduler::NextDeadlineUs, docs::kNextDeadline)
      .def("stats", &Stats, docs::kStats)
      .def("state", &DescribeState, docs::kState)
      .def("check_invariants", &Scheduler::CheckInvariants, docs::kCheckInvariants);
}

}  // namespace tokenspeed
