#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "bindings/bound_scheduler.h"
#include "bindings/buffers.h"
#include "bindings/scheduler_docs.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace tokenspeed {
namespace {

using PlanOrNone = nb::typed<nb::object, std::optional<View<StepPlan>>>;
using Result = nb::typed<nb::object, View<CommitResult>>;

// What submit and submit_turn have in common, in the order of their arguments.
struct Options {
  const MaybeIds& outputs;
  int32_t max_new_tokens, min_new_tokens;
  const MaybeIds& stop_ids;
  int32_t priority;
  const nb::bytes& salt;
  bool match_prefix;
  int64_t deadline_us, root, tenant;
  const MaybeIds& reuse_points;
  int64_t gap_us, queue_key, victim_key, retain_us, max_queue_us;
  int32_t max_drafts;
  bool device_drafts;
};

Submission MakeSubmission(int64_t request_id, const Ids& prompt, int64_t session,
                          const Options& options) {
  return {.id = RequestId(request_id),
          .prompt = prompt.span(),
          .outputs = options.outputs.span(),
          .max_new_tokens = options.max_new_tokens,
          .min_new_tokens = options.min_new_tokens,
          .stop_ids = options.stop_ids.span(),
          .priority = options.priority,
          .salt = std::string(options.salt.c_str(), options.salt.size()),
          .match_prefix = options.match_prefix,
          .deadline_us = options.deadline_us,
          .session = session,
          .root = options.root,
          .tenant = options.tenant,
          .reuse_points = options.reuse_points.span(),
          .gap_us = options.gap_us,
          .queue_key = options.queue_key,
          .victim_key = options.victim_key,
          .retain_us = options.retain_us,
          .max_queue_us = options.max_queue_us,
          .max_drafts = options.max_drafts,
          .device_drafts = options.device_drafts};
}

void Submit(BoundScheduler& self, int64_t request_id, const Ids& prompt_ids, int64_t session,
            const MaybeIds& output_ids, int32_t max_new_tokens, int32_t min_new_tokens,
            const MaybeIds& stop_token_ids, int32_t priority, const nb::bytes& salt,
            bool match_prefix, int64_t deadline_us, int64_t root, int64_t tenant,
            const MaybeIds& reuse_points, int64_t gap_us, int64_t queue_key, int64_t victim_key,
            int64_t retain_us, int64_t max_queue_us, int32_t max_drafts, bool device_drafts,
            int64_t now_us) {
  self.scheduler.Submit(
      MakeSubmission(request_id, prompt_ids, session,
                     {output_ids, max_new_tokens, min_new_tokens, stop_token_ids, priority, salt,
                      match_prefix, deadline_us, root, tenant, reuse_points, gap_us, queue_key,
                      victim_key, retain_us, max_queue_us, max_drafts, device_drafts}),
      now_us);
}

void SubmitTurn(BoundScheduler& self, int64_t request_id, int64_t session, int32_t base_tokens,
                uint64_t base_digest, const Ids& new_ids, int32_t max_new_tokens,
                int32_t min_new_tokens, const MaybeIds& stop_token_ids, int32_t priority,
                const nb::bytes& salt, bool match_prefix, int64_t deadline_us, int64_t root,
                int64_t tenant, const MaybeIds& reuse_points, int64_t gap_us, int64_t queue_key,
                int64_t victim_key, int64_t retain_us, int64_t max_queue_us, int32_t max_drafts,
                bool device_drafts, int64_t now_us) {
  self.scheduler.SubmitTurn(
      MakeSubmission(request_id, new_ids, session,
                     {MaybeIds(), max_new_tokens, min_new_tokens, stop_token_ids, priority, salt,
                      match_prefix, deadline_us, root, tenant, reuse_points, gap_us, queue_key,
                      victim_key, retain_us, max_queue_us, max_drafts, device_drafts}),
      {base_tokens, base_digest}, now_us);
}

bool AbortById(BoundScheduler& self, int64_t request_id, int64_t now_us) {
  return self.scheduler.AbortRequest(RequestId(request_id), now_us);
}

bool StopById(BoundScheduler& self, int64_t request_id, int64_t now_us) {
  return self.scheduler.StopRequest(RequestId(request_id), now_us);
}

std::vector<int64_t> SetTenantLimits(BoundScheduler& self, int64_t tenant, int64_t floor_blocks,
                                     std::optional<int64_t> cap_blocks, int64_t now_us) {
  std::optional<TenantLimits> limits;
  if (floor_blocks != 0 || cap_blocks) limits = TenantLimits{.floor = floor_blocks};
  if (cap_blocks) limits->cap = *cap_blocks;
  std::vector<int64_t> ended;
  for (const RequestId id : self.scheduler.SetTenantLimits(tenant, limits, now_us)) {
    ended.push_back(id.value);
  }
  return ended;
}

bool Rekey(BoundScheduler& self, int64_t request_id, int64_t gap_us, int64_t victim_key) {
  return self.scheduler.Rekey(RequestId(request_id), gap_us, victim_key);
}

using Freed = nb::typed<nb::dict, nb::str, nb::any>;

std::optional<Freed> Release(BoundScheduler& self, int64_t session, int64_t now_us) {
  const std::optional<Released> released = self.scheduler.Release(session, now_us);
  if (!released) return std::nullopt;
  Freed dict{nb::dict()};
  dict["tokens"] = released->tokens;
  dict["blocks"] = nb::cast(released->blocks);
  dict["host_blocks"] = nb::cast(released->host_blocks);
  return dict;
}

void Propose(BoundScheduler& self, int64_t request_id, const Ids& draft_ids) {
  self.scheduler.Propose(RequestId(request_id), draft_ids.span());
}

PlanOrNone Plan(BoundScheduler& self, int64_t now_us) {
  nb::object view = self.plans.Take();
  const bool has_work = self.scheduler.Plan(now_us, nb::cast<View<StepPlan>&>(view).data());
  return nb::borrow<PlanOrNone>(has_work ? view : nb::none());
}

Result Commit(BoundScheduler& self, int64_t step_id, const IdRows& tokens, const MaybeIds& accepted,
              const MaybeFlags& failed, int64_t now_us) {
  nb::object view = self.results.Take();
  self.scheduler.Commit(step_id, {tokens.span(), accepted.span(), failed.span()}, now_us,
                        *nb::cast<View<CommitResult>&>(view).data());
  return nb::borrow<Result>(view);
}

Result TakeEnded(BoundScheduler& self) {
  nb::object view = self.results.Take();
  self.scheduler.TakeEnded(*nb::cast<View<CommitResult>&>(view).data());
  return nb::borrow<Result>(view);
}

void Notify(BoundScheduler& self, const IdRows& transfers, int64_t now_us) {
  const std::span<const int32_t> flat = transfers.span();
  const auto* rows = reinterpret_cast<const std::array<int32_t, 2>*>(flat.data());
  self.scheduler.Notify({rows, flat.size() / 2}, now_us);
}

using Keys =
    nb::ndarray<const uint8_t, nb::shape<-1, sizeof(Hash128)>, nb::c_contig, nb::device::cpu>;

void NotifyStore(BoundScheduler& self, const Keys& keys, bool present) {
  std::vector<Hash128> hashes(keys.shape(0));
  if (!hashes.empty()) std::memcpy(hashes.data(), keys.data(), hashes.size() * sizeof(Hash128));
  self.scheduler.NotifyStore(hashes, present);
}

}  // namespace

// The options of submit and submit_turn after their own arguments.
#define TS_REQUEST_OPTIONS                                                                        \
  "max_new_tokens"_a = 0, "min_new_tokens"_a = 0, "stop_token_ids"_a.none() = nb::none(),         \
  "priority"_a = 0, nb::arg("salt").sig("b''") = nb::bytes(""), "match_prefix"_a = true,          \
  "deadline_us"_a = 0, "root"_a = 0, "tenant"_a = 0, "reuse_points"_a.none() = nb::none(),        \
  "gap_us"_a = 0, "queue_key"_a = 0, "victim_key"_a = 0, "retain_us"_a = 0, "max_queue_us"_a = 0, \
  "max_drafts"_a = 0, "device_drafts"_a = false, "now_us"_a

void BindScheduler(nb::module_& m) {
  nb::class_<BoundScheduler> scheduler(m, "Scheduler", docs::kScheduler);
  scheduler.def(nb::init<const SchedulerConfig&>(), "config"_a)
      .def("submit", &Submit, "request_id"_a, "prompt_ids"_a, nb::kw_only(), "session"_a = 0,
           "output_ids"_a.none() = nb::none(), TS_REQUEST_OPTIONS, docs::kSubmit)
      .def("submit_turn", &SubmitTurn, "request_id"_a, "session"_a, "base_tokens"_a,
           "base_digest"_a, "new_ids"_a, nb::kw_only(), TS_REQUEST_OPTIONS, docs::kSubmitTurn)
      .def("abort", &AbortById, "request_id"_a, nb::kw_only(), "now_us"_a, docs::kAbort)
      .def("stop", &StopById, "request_id"_a, nb::kw_only(), "now_us"_a, docs::kStop)
      .def("rekey", &Rekey, "request_id"_a, nb::kw_only(), "gap_us"_a, "victim_key"_a, docs::kRekey)
      .def("release", &Release, "session"_a, nb::kw_only(), "now_us"_a, docs::kRelease)
      .def("set_tenant_limits", &SetTenantLimits, "tenant"_a, nb::kw_only(), "floor_blocks"_a = 0,
           "cap_blocks"_a.none() = nb::none(), "now_us"_a, docs::kSetTenantLimits)
      .def("propose", &Propose, "request_id"_a, "draft_ids"_a, docs::kPropose)
      .def("plan", &Plan, nb::kw_only(), "now_us"_a, docs::kPlan)
      .def("commit", &Commit, "step_id"_a, "tokens"_a, nb::kw_only(),
           "accepted"_a.none() = nb::none(), "failed"_a.none() = nb::none(), "now_us"_a,
           docs::kCommit)
      .def("notify", &Notify, "transfers"_a, nb::kw_only(), "now_us"_a, docs::kNotify)
      .def("notify_store", &NotifyStore, "keys"_a, "present"_a, docs::kNotifyStore)
      .def("take_ended", &TakeEnded, docs::kTakeEnded);
  BindInspection(scheduler);
}

#undef TS_REQUEST_OPTIONS

}  // namespace tokenspeed
