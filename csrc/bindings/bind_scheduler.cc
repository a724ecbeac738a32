#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>

#include "bindings/bind.h"
#include "scheduler/scheduler.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace tokenspeed {
namespace {

using Ids = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
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

CommitResult Commit(Scheduler& self, int64_t step_id, const Ids& tokens,
                    const std::optional<Flags>& failed, int64_t now_us) {
  const std::span<const bool> flags =
      failed ? std::span(failed->data(), failed->size()) : std::span<const bool>();
  return self.Commit(step_id, Span(tokens), flags, now_us);
}

nb::dict Stats(const Scheduler& self) {
  nb::dict stats;
  for (const auto& [name, value] : self.Stats()) stats[name.c_str()] = value;
  return stats;
}

nb::dict DescribeState(Scheduler& self) {
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

void BindConfig(nb::module_& m) {
  nb::class_<GroupSpec>(m, "GroupSpec")
      .def(
          "__init__",
          [](GroupSpec* self, std::string name, std::string kind, int32_t packing,
             int32_t share_tokens) {
            new (self) GroupSpec{std::move(name), std::move(kind), packing, share_tokens};
          },
          nb::kw_only(), "name"_a, "kind"_a = "full", "packing"_a = 1, "share_tokens"_a = 1)
      .def_rw("name", &GroupSpec::name)
      .def_rw("kind", &GroupSpec::kind)
      .def_rw("packing", &GroupSpec::packing)
      .def_rw("share_tokens", &GroupSpec::share_tokens);
  nb::class_<SchedulerConfig>(m, "SchedulerConfig")
      .def(
          "__init__",
          [](SchedulerConfig* self, int32_t block_tokens, std::vector<GroupSpec> groups,
             int32_t num_physical_blocks, int32_t max_running, int32_t max_waiting,
             int32_t max_step_tokens, int32_t max_context_tokens, int32_t depth, bool prefix_cache,
             uint64_t hash_seed) {
            const SchedulerConfig config{
                block_tokens, std::move(groups), num_physical_blocks, max_running,
                max_waiting,  max_step_tokens,   max_context_tokens,  depth,
                prefix_cache, hash_seed};
            Validate(config);
            new (self) SchedulerConfig(config);
          },
          nb::kw_only(), "block_tokens"_a, "groups"_a, "num_physical_blocks"_a, "max_running"_a,
          "max_waiting"_a, "max_step_tokens"_a, "max_context_tokens"_a, "depth"_a = 0,
          "prefix_cache"_a = true, "hash_seed"_a = 0);
}

}  // namespace

void BindScheduler(nb::module_& m) {
  BindConfig(m);
  nb::class_<Scheduler>(m, "Scheduler")
      .def(nb::init<const SchedulerConfig&>(), "config"_a)
      .def("submit", &Submit, "request_id"_a, "prompt_ids"_a, nb::kw_only(),
           "output_ids"_a = nb::none(), "max_new_tokens"_a = 0, "min_new_tokens"_a = 0,
           "stop_token_ids"_a = nb::none(), "priority"_a = 0, "salt"_a = nb::bytes(""),
           "match_prefix"_a = true, "deadline_us"_a = 0, "now_us"_a)
      .def(
          "abort",
          [](Scheduler& self, int64_t id, int64_t now_us) {
            return self.AbortRequest(RequestId(id), now_us);
          },
          "request_id"_a, nb::kw_only(), "now_us"_a)
      .def(
          "stop",
          [](Scheduler& self, int64_t id, int64_t now_us) {
            return self.StopRequest(RequestId(id), now_us);
          },
          "request_id"_a, nb::kw_only(), "now_us"_a)
      .def(
          "plan",
          [](Scheduler& self, int64_t now_us) {
            return std::const_pointer_cast<StepPlan>(self.Plan(now_us));
          },
          nb::kw_only(), "now_us"_a)
      .def("commit", &Commit, "step_id"_a, "tokens"_a, nb::kw_only(), "failed"_a = nb::none(),
           "now_us"_a)
      .def("take_ended", &Scheduler::TakeEnded)
      .def("has_work", &Scheduler::HasWork)
      .def("next_deadline_us", &Scheduler::NextDeadlineUs)
      .def("stats", &Stats)
      .def("state", &DescribeState)
      .def("check_invariants", &Scheduler::CheckInvariants);
}

}  // namespace tokenspeed
