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
               int32_t share_tokens) {
  new (self) GroupSpec{std::move(name), std::move(kind), packing, share_tokens};
}

void InitConfig(SchedulerConfig* self, int32_t block_tokens, std::vector<GroupSpec> groups,
                int32_t num_physical_blocks, int32_t max_running, int32_t max_waiting,
                int32_t max_step_tokens, int32_t max_context_tokens, int32_t depth,
                bool prefix_cache, uint64_t hash_seed) {
  const SchedulerConfig config{block_tokens, std::move(groups), num_physical_blocks, max_running,
                               max_waiting,  max_step_tokens,   max_context_tokens,  depth,
                               prefix_cache, hash_seed};
  Validate(config);
  new (self) SchedulerConfig(config);
}

}  // namespace

void BindConfig(nb::module_& m) {
  nb::class_<GroupSpec>(m, "GroupSpec", "A cache group as the control plane sees it.")
      .def("__init__", &InitGroup, nb::kw_only(), "name"_a, "kind"_a = "full", "packing"_a = 1,
           "share_tokens"_a = 1)
      .def_ro("name", &GroupSpec::name, "Name in messages.")
      .def_ro("kind", &GroupSpec::kind, "What is kept: \"full\" is all of the history.")
      .def_ro("packing", &GroupSpec::packing, "Logical blocks in one physical block.")
      .def_ro("share_tokens", &GroupSpec::share_tokens,
              "Grain in tokens at which written bytes are final and a block's tail is reused.");
  nb::class_<SchedulerConfig>(m, "SchedulerConfig", "Settings of a scheduler, fixed for its life.")
      .def("__init__", &InitConfig, nb::kw_only(), "block_tokens"_a, "groups"_a,
           "num_physical_blocks"_a, "max_running"_a, "max_waiting"_a, "max_step_tokens"_a,
           "max_context_tokens"_a, "depth"_a = 0, "prefix_cache"_a = true, "hash_seed"_a = 0,
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
Raises:
    ValueError: a field is out of range; the message names it.)");
}

}  // namespace tokenspeed
