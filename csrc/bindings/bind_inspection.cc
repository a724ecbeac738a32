#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <utility>

#include "bindings/bound_scheduler.h"
#include "bindings/scheduler_docs.h"
#include "kv/events.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace tokenspeed {
namespace {

using Counts = nb::typed<nb::dict, nb::str, nb::int_>;
using MaybeCounts = nb::typed<nb::dict, nb::str, nb::typed<nb::object, std::optional<int64_t>>>;
using Description =
    nb::typed<nb::dict, nb::str, nb::typed<nb::list, nb::typed<nb::dict, nb::str, nb::any>>>;

Counts Dict(const std::map<std::string, int64_t>& counts) {
  nb::dict dict;
  for (const auto& [name, value] : counts) dict[name.c_str()] = value;
  return dict;
}

nb::dict Describe(const RequestView& view) {
  nb::dict request;
  request["id"] = view.id.value;
  request["state"] = view.state;
  request["priority"] = view.priority;
  request["slot"] = view.slot;
  request["computed_tokens"] = view.computed_tokens;
  request["blocks"] = nb::cast(view.blocks);
  return request;
}

nb::dict Describe(const PhysicalView& view) {
  nb::dict block;
  block["id"] = view.id;
  block["group"] = view.group;
  block["refs"] = view.refs;
  return block;
}

Description DescribeBlocks(BoundScheduler& self) {
  nb::list requests, physical_blocks;
  for (const RequestView& view : self.scheduler.Requests()) requests.append(Describe(view));
  for (const PhysicalView& view : self.scheduler.PhysicalBlocks()) {
    physical_blocks.append(Describe(view));
  }
  nb::dict state;
  state["requests"] = requests;
  state["physical_blocks"] = physical_blocks;
  return state;
}

std::optional<std::pair<int32_t, uint64_t>> SessionBase(BoundScheduler& self, int64_t session) {
  const std::optional<TurnBase> base = self.scheduler.SessionBase(session);
  if (!base) return std::nullopt;
  return std::pair(base->tokens, base->digest);
}

using Tenants = nb::typed<nb::list, MaybeCounts>;

Tenants DescribeTenants(BoundScheduler& self) {
  nb::list tenants;
  for (const TenantUsage& usage : self.scheduler.Tenants()) {
    nb::dict tenant;
    tenant["tenant"] = usage.tenant;
    tenant["floor_blocks"] = usage.limits.floor;
    const bool is_capped = usage.limits.cap != TenantLimits{}.cap;
    tenant["cap_blocks"] = is_capped ? nb::cast(usage.limits.cap) : nb::none();
    tenant["held_blocks"] = usage.held;
    tenant["cached_blocks"] = usage.cached;
    tenant["running"] = usage.running;
    tenant["waiting"] = usage.waiting;
    tenants.append(tenant);
  }
  return tenants;
}

}  // namespace

void BindInspection(nb::class_<BoundScheduler>& scheduler) {
  BindState(scheduler);
  scheduler
      .def(
          "has_work", [](const BoundScheduler& self) { return self.scheduler.HasWork(); },
          docs::kHasWork)
      .def(
          "next_deadline_us",
          [](const BoundScheduler& self) { return self.scheduler.NextDeadlineUs(); },
          docs::kNextDeadline)
      .def("session_base", &SessionBase, "session"_a, docs::kSessionBase)
      .def(
          "take_record",
          [](BoundScheduler& self) {
            const std::string record = self.scheduler.TakeRecord();
            return nb::bytes(record.data(), record.size());
          },
          docs::kTakeRecord)
      .def(
          "replay",
          [](BoundScheduler& self, const nb::bytes& record) {
            return Replay(self.scheduler, {record.c_str(), record.size()});
          },
          "record"_a, docs::kReplay)
      .def(
          "session_totals",
          [](const BoundScheduler& self, int64_t session) {
            const SessionTotals totals = self.scheduler.TotalsOf(session);
            return Dict({{"turns", totals.turns},
                         {"prompt_tokens", totals.prompt},
                         {"cached_tokens", totals.cached},
                         {"created_tokens", totals.created},
                         {"recomputed_tokens", totals.recomputed},
                         {"output_tokens", totals.output}});
          },
          "session"_a, docs::kSessionTotals)
      .def(
          "drain_events", [](BoundScheduler& self) { return self.scheduler.DrainEvents(); },
          docs::kDrainEvents)
      .def(
          "stats", [](const BoundScheduler& self) { return Dict(self.scheduler.Stats()); },
          docs::kStats)
      .def(
          "queued_tokens", [](const BoundScheduler& self) { return self.scheduler.QueuedTokens(); },
          docs::kQueuedTokens)
      .def(
          "num_sets", [](const BoundScheduler& self) { return self.scheduler.NumSets(); },
          docs::kNumSets)
      .def("tenants", &DescribeTenants, docs::kTenants)
      .def("blocks", &DescribeBlocks, docs::kBlocks)
      .def(
          "check_invariants", [](BoundScheduler& self) { self.scheduler.CheckInvariants(); },
          docs::kCheckInvariants);
}

}  // namespace tokenspeed
