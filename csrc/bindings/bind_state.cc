#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <vector>

#include "bindings/bound_scheduler.h"
#include "bindings/scheduler_docs.h"
#include "scheduler/state.h"

namespace nb = nanobind;

namespace tokenspeed {
namespace {

using State = nb::typed<nb::dict, nb::str, nb::any>;

// A list of few different words, each made once.
template <class Values, class Word>
nb::list Words(const Values& values, const Word& word) {
  std::vector<std::pair<const char*, nb::str>> known;
  nb::list list;
  for (const auto& value : values) {
    const char* text = word(value);
    size_t i = 0;
    while (i < known.size() && known[i].first != text) ++i;
    if (i == known.size()) known.emplace_back(text, nb::str(text));
    list.append(known[i].second);
  }
  return list;
}

nb::dict Requests(const RequestColumns& columns) {
  nb::dict requests;
  requests["id"] = nb::cast(columns.id);
  requests["state"] = Words(columns.state, [](const char* name) { return name; });
  requests["reason"] =
      Words(columns.wait, [](Wait wait) { return kWaits[static_cast<size_t>(wait)]; });
  requests["waits_for"] = nb::cast(columns.waits_for);
  requests["position"] = nb::cast(columns.position);
  requests["pieces"] = nb::cast(columns.pieces);
  requests["arrived"] = nb::cast(columns.arrived);
  requests["priority"] = nb::cast(columns.priority);
  requests["slot"] = nb::cast(columns.slot);
  requests["tenant"] = nb::cast(columns.tenant);
  requests["session"] = nb::cast(columns.session);
  requests["prompt_tokens"] = nb::cast(columns.prompt);
  requests["output_tokens"] = nb::cast(columns.outputs);
  requests["cached_tokens"] = nb::cast(columns.cached);
  requests["computed_tokens"] = nb::cast(columns.computed);
  requests["planned_tokens"] = nb::cast(columns.planned);
  requests["blocks"] = nb::cast(columns.blocks);
  return requests;
}

nb::dict Group(const GroupState& state) {
  nb::dict group;
  group["name"] = state.name;
  group["kind"] = state.kind;
  group["packing"] = state.packing;
  group["held"] = state.held;
  group["resting"] = state.resting;
  group["indexed"] = state.indexed;
  group["retained"] = state.retained;
  group["vacant"] = state.vacant;
  group["leaving"] = state.leaving;
  group["loading"] = state.loading;
  group["host"] = state.host;
  group["physical_used"] = state.physical_used;
  group["physical_cached"] = state.physical_cached;
  return group;
}

nb::object Host(const std::optional<HostState>& state) {
  if (!state) return nb::none();
  nb::dict host;
  host["total"] = state->total;
  host["used"] = state->used;
  host["cached"] = state->cached;
  host["free"] = state->free;
  host["items"] = state->items;
  host["arriving"] = state->arriving;
  return host;
}

nb::object Model(const std::optional<ModelState>& state) {
  if (!state) return nb::none();
  nb::dict model;
  model["floor_tps"] = state->floor_tps;
  model["decode_step_us"] = state->decode_step_us;
  model["base_us"] = state->coefficients[0];
  model["row_us"] = state->coefficients[1];
  model["prefill_token_us"] = state->coefficients[2];
  model["context_token_us"] = state->coefficients[3];
  model["prefill_work_us"] = state->coefficients[4];
  model["noise_us"] = state->noise_us;
  model["steps"] = state->num_observations;
  model["is_outgrown"] = state->is_outgrown;
  model["violated"] = state->num_violated;
  return model;
}

State Describe(BoundScheduler& self) {
  const SchedulerState picture = self.scheduler.Inspect();
  nb::list groups, transfers;
  for (const GroupState& group : picture.groups) groups.append(Group(group));
  for (const Tiers::Flight& flight : picture.in_flight) {
    nb::dict transfer;
    transfer["kind"] = flight.kind;
    transfer["count"] = flight.count;
    transfer["oldest_us"] = flight.oldest_us;
    transfers.append(transfer);
  }
  nb::dict state;
  state["requests"] = Requests(picture.requests);
  state["groups"] = groups;
  state["host"] = Host(picture.host);
  state["store_records"] =
      picture.store_records ? nb::object(nb::int_(*picture.store_records)) : nb::none();
  state["transfers"] = transfers;
  state["step_model"] = Model(picture.model);
  state["parked"] = picture.num_parked;
  return state;
}

}  // namespace

void BindState(nb::class_<BoundScheduler>& scheduler) {
  scheduler.def("state", &Describe, docs::kState);
}

}  // namespace tokenspeed
