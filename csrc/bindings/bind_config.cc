#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "scheduler/config.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace tokenspeed {
namespace {

void InitGroup(GroupSpec* self, std::string name, std::string kind, int32_t packing,
               int32_t share_tokens, int32_t window, std::string speculation) {
  new (self) GroupSpec{std::move(name), std::move(kind), packing,
                       share_tokens,    window,          std::move(speculation)};
}

void InitConfig(SchedulerConfig* self, int32_t block_tokens, std::vector<GroupSpec> groups,
                int32_t num_physical_blocks, int32_t max_running, int32_t max_waiting,
                int32_t max_step_tokens, int32_t max_context_tokens, int32_t depth,
                bool prefix_cache, uint64_t hash_seed, double state_cache_share,
                double retain_share, int32_t host_blocks, double copy_cost_tokens,
                std::string write_policy, int32_t min_reuse, bool store, int32_t layer_ranges,
                bool kv_events, int32_t max_prefill_steps, double min_tps_per_user,
                int64_t max_queue_us, int64_t ageing_us, int32_t max_sessions,
                int64_t session_bytes, bool record_events) {
  const SchedulerConfig config{.block_tokens = block_tokens,
                               .groups = std::move(groups),
                               .num_physical_blocks = num_physical_blocks,
                               .max_running = max_running,
                               .max_waiting = max_waiting,
                               .max_step_tokens = max_step_tokens,
                               .max_context_tokens = max_context_tokens,
                               .depth = depth,
                               .prefix_cache = prefix_cache,
                               .hash_seed = hash_seed,
                               .state_cache_share = state_cache_share,
                               .retain_share = retain_share,
                               .host_blocks = host_blocks,
                               .copy_cost_tokens = copy_cost_tokens,
                               .write_policy = std::move(write_policy),
                               .min_reuse = min_reuse,
                               .store = store,
                               .layer_ranges = layer_ranges,
                               .kv_events = kv_events,
                               .max_prefill_steps = max_prefill_steps,
                               .min_tps_per_user = min_tps_per_user,
                               .max_queue_us = max_queue_us,
                               .ageing_us = ageing_us,
                               .max_sessions = max_sessions,
                               .session_bytes = session_bytes,
                               .record_events = record_events};
  Validate(config);
  new (self) SchedulerConfig(config);
}

}  // namespace

void BindConfig(nb::module_& m) {
  nb::class_<GroupSpec>(m, "GroupSpec", "A cache group as the control plane sees it.")
      .def("__init__", &InitGroup, nb::kw_only(), "name"_a, "kind"_a = "full", "packing"_a = 1,
           "share_tokens"_a = 1, "window"_a = 0, "speculation"_a = "rows_per_position")
      .def_ro("name", &GroupSpec::name, "Name in messages.")
      .def_ro("kind", &GroupSpec::kind,
              "What is kept: \"full\" all of the history, \"window\" its end, \"state\" snapshots.")
      .def_ro("packing", &GroupSpec::packing, "Logical blocks in one physical block.")
      .def_ro("share_tokens", &GroupSpec::share_tokens,
              "Grain in tokens at which written bytes are final and a block's tail is reused.")
      .def_ro("window", &GroupSpec::window, "Tokens that a query of a window group sees.")
      .def_ro("speculation", &GroupSpec::speculation,
              "How a state group takes drafts back: \"rows_per_position\" or \"replay\".");
  nb::class_<SchedulerConfig>(m, "SchedulerConfig", "Settings of a scheduler, fixed for its life.")
      .def("__init__", &InitConfig, nb::kw_only(), "block_tokens"_a, "groups"_a,
           "num_physical_blocks"_a, "max_running"_a, "max_waiting"_a, "max_step_tokens"_a,
           "max_context_tokens"_a, "depth"_a = 0, "prefix_cache"_a = true, "hash_seed"_a = 0,
           "state_cache_share"_a = 0.3, "retain_share"_a = 0.25, "host_blocks"_a = 0,
           "copy_cost_tokens"_a = 1.0, "write_policy"_a = "none", "min_reuse"_a = 2,
           "store"_a = false, "layer_ranges"_a = 1, "kv_events"_a = false,
           "max_prefill_steps"_a = 3, "min_tps_per_user"_a = 0.0, "max_queue_us"_a = 0,
           "ageing_us"_a = 30'000'000, "max_sessions"_a = 4096,
           "session_bytes"_a = int64_t{256} << 20, "record_events"_a = false,
           R"(Check and keep the settings.

Args:
    block_tokens: tokens in a logical block; a power of two >= 16.
    groups: the cache groups; `block_updates` and `copies` name them by index.
    num_physical_blocks: blocks of the arena, the sentinel (id 0) included.
    max_running: requests that hold a slot at once.
    max_waiting: requests that may queue without one; more are refused.
    max_step_tokens: query tokens in one step.
    max_context_tokens: prompt and output of one request.
    depth: plans that may be uncommitted when the next is made: 0 or 1.
    prefix_cache: False keeps no block beyond its request.
    hash_seed: seed of the prefix hash; one value for all replicas that share a cache.
    state_cache_share: most of the pool that cached snapshots may hold.
    retain_share: most of the pool that retained prefixes may hold.
    host_blocks: physical blocks of the host tier, its unused first one included; 0: none.
    copy_cost_tokens: prefill of this many tokens takes as long as copying a block.
    write_policy: when blocks go to the tiers: "none", "on_eviction", "on_commit", "selective".
    min_reuse: uses after which "selective" writes a block.
    store: whether a store stands behind the host tier.
    layer_ranges: parts in which a load arrives.
    kv_events: keep changes of the prefix cache for `drain_events`.
    max_prefill_steps: steps in a row in which a running stream may get no token.
    min_tps_per_user: tokens per second that every running stream keeps; 0: no floor.
    max_queue_us: longest wait in the queue; 0: no limit.
    ageing_us: a waiting request gains one priority class per this much waiting.
    max_sessions: sessions whose last turn is remembered.
    session_bytes: memory for the tokens of those turns.
    record_events: keep the input stream for `take_record`.
Raises:
    ValueError: a field is out of range; the message names it.)");
}

}  // namespace tokenspeed
