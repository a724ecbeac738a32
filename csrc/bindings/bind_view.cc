#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "bindings/buffers.h"
#include "kv/chain_keys.h"
#include "kv/namespaces.h"
#include "kv/prefix_view.h"
#include "kv/view_wire.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace tokenspeed {
namespace {

// Low halves of the chain hashes of a prompt's full blocks.
struct PrefixKeys {
  ChainKeys chain;
  std::vector<uint64_t> low;
  size_t num_hashed = 0;  // blocks that this object has hashed, and not taken over

  void Extend(const Ids& tokens) {
    const size_t before = chain.size();
    chain.Extend(tokens.span());
    num_hashed += chain.size() - before;
    low.reserve(chain.size());
    while (low.size() < chain.size()) low.push_back(chain[low.size()].lo);
  }

  PrefixKeys First(size_t num_blocks) const {
    PrefixKeys first{chain, low, 0};
    first.chain.Truncate(num_blocks);
    first.low.resize(first.chain.size());
    return first;
  }
};

std::string_view ViewOf(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }
nb::bytes BytesOf(const std::string& text) { return nb::bytes(text.data(), text.size()); }

void InitKeys(PrefixKeys* self, int32_t block_tokens, int64_t tenant, const nb::bytes& salt,
              uint64_t hash_seed) {
  if (block_tokens < 16 || block_tokens % 16 != 0) {
    throw std::invalid_argument("block_tokens must be a multiple of 16");
  }
  const std::string name = NamespaceOf(tenant, std::string(ViewOf(salt)));
  new (self) PrefixKeys{ChainKeys(HashRoot(hash_seed, name), block_tokens), {}, 0};
}

ViewGroup GroupOf(const std::tuple<std::string, int32_t>& group, int32_t block_tokens) {
  const auto& [kind, window] = group;
  if (kind == "full") return {};
  if (kind == "state") return {.kind = ViewGroup::Kind::kState};
  if (kind != "window") throw std::invalid_argument("a group is full, window or state");
  return {.kind = ViewGroup::Kind::kWindow,
          .window_blocks = (window + block_tokens - 1) / block_tokens};
}

void InitView(PrefixView* self, int num_replicas, int32_t block_tokens,
              const std::vector<std::tuple<std::string, int32_t>>& groups, size_t max_slots) {
  std::vector<ViewGroup> walked;
  for (const auto& group : groups) walked.push_back(GroupOf(group, block_tokens));
  new (self) PrefixView(num_replicas, std::move(walked), max_slots);
}

int Checked(const PrefixView& self, int replica) {
  if (replica < 0 || replica >= self.num_replicas()) {
    throw std::invalid_argument("there is no such replica");
  }
  return replica;
}

std::vector<std::tuple<int32_t, int32_t, int32_t>> Match(const PrefixView& self,
                                                         const PrefixKeys& keys) {
  std::vector<std::tuple<int32_t, int32_t, int32_t>> found;
  for (const ViewMatch& match : self.Match(keys.low)) {
    found.emplace_back(match.cached, match.behind, match.expected);
  }
  return found;
}

void BindKeys(nb::module_& m) {
  nb::class_<PrefixKeys>(m, "PrefixKeys",
                         "Names of a prompt's full blocks, as engines and their events know them.")
      .def("__init__", &InitKeys, "block_tokens"_a, nb::kw_only(), "tenant"_a = 0,
           "salt"_a = nb::bytes("", 0), "hash_seed"_a = 0,
           "Begin a prompt in the namespace of a tenant's number and a salt.")
      .def(
          "extend", &PrefixKeys::Extend, "tokens"_a,
          "Hash what is new. `tokens` is all of the prompt so far: it begins with the last call's.")
      .def("first", &PrefixKeys::First, "num_blocks"_a,
           "Return a prompt that begins with the first blocks of this one, which are not hashed "
           "again.")
      .def_prop_ro(
          "num_hashed", [](const PrefixKeys& self) { return self.num_hashed; },
          "Blocks that were hashed here; those of `first` were not.")
      .def("__len__", [](const PrefixKeys& self) { return self.low.size(); });
}

}  // namespace

void BindView(nb::module_& m) {
  BindKeys(m);
  nb::class_<PrefixView>(m, "PrefixView",
                         R"(What several replicas have cached, as their events tell; for routers.

16 bytes a slot, at most 3/4 of them taken: 21 to 43 bytes a block and group, which replicas share.)")
      .def("__init__", &InitView, "num_replicas"_a, nb::kw_only(), "block_tokens"_a, "groups"_a,
           "max_slots"_a = size_t{1} << 22,
           R"(Begin with nothing.

Args:
    num_replicas: 1 to 16.
    groups: (kind, window in tokens) of each cache group, in the scheduler's order.
    max_slots: a power of two; a full table notes no further block.)")
      .def(
          "apply",
          [](PrefixView& self, int replica, const nb::bytes& changes) {
            ApplyChanges(self, Checked(self, replica), ViewOf(changes));
          },
          "replica"_a, "changes"_a, "Note what changed, as `EventBatch.packed` wrote it.")
      .def(
          "save",
          [](const PrefixView& self, int replica) {
            return BytesOf(PackKnown(self, Checked(self, replica)));
          },
          "replica"_a, "Return all that a replica has, for `load` of another view.")
      .def(
          "load",
          [](PrefixView& self, int replica, const nb::bytes& known) {
            self.Clear(Checked(self, replica));
            LoadKnown(self, replica, ViewOf(known));
          },
          "replica"_a, "known"_a, "Forget what a replica has; it has what was saved instead.")
      .def(
          "clear", [](PrefixView& self, int replica) { self.Clear(Checked(self, replica)); },
          "replica"_a, "Forget what a replica has and what is expected of it.")
      .def(
          "expect",
          [](PrefixView& self, int replica, const PrefixKeys& keys, bool is_expected) {
            self.Expect(Checked(self, replica), keys.low, is_expected);
          },
          "replica"_a, "keys"_a, "is_expected"_a,
          "Note that a replica is about to compute these blocks, or has ended.")
      .def("match", &Match, "keys"_a,
           "Return (cached, of these behind the device, cached or expected) blocks, by replica.")
      .def_prop_ro("num_blocks", &PrefixView::num_blocks, "Blocks known, of all groups.")
      .def_prop_ro("num_bytes", &PrefixView::num_bytes, "Memory of the table.")
      .def_prop_ro("num_ignored", &PrefixView::num_ignored, "Told of while the table was full.")
      .def("check_invariants", &PrefixView::CheckInvariants, "For tests.");
}

}  // namespace tokenspeed
