#include "kv/prefix_view.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <utility>

#include "base/check.h"

namespace tokenspeed {
namespace {

// Slots that are loaded ahead of the walk along a prompt.
constexpr size_t kAhead = 8;

}  // namespace

// How many blocks in a row each replica has of each window group, up to where the walk is.
struct PrefixView::Walk {
  std::vector<std::array<int32_t, kMaxReplicas>> runs;
  int32_t position = 0;  // blocks walked, the current one included
};

PrefixView::PrefixView(int num_replicas, std::vector<ViewGroup> groups, size_t max_slots)
    : num_replicas_(num_replicas), groups_(std::move(groups)), max_slots_(max_slots) {
  if (num_replicas < 1 || num_replicas > kMaxReplicas) {
    throw std::invalid_argument("num_replicas must be 1 to 16");
  }
  if (max_slots < kMinSlots || !std::has_single_bit(max_slots)) {
    throw std::invalid_argument("max_slots must be a power of two, at least 1024");
  }
  for (size_t group = 0; group < groups_.size(); ++group) {
    auto& of_kind = groups_[group].kind == ViewGroup::Kind::kFull     ? full_
                    : groups_[group].kind == ViewGroup::Kind::kWindow ? windows_
                                                                      : states_;
    of_kind.push_back(static_cast<int32_t>(group));
  }
  if (groups_.empty()) throw std::invalid_argument("groups: at least one is needed");
  slots_.resize(kMinSlots);
}

void PrefixView::Expect(int replica, std::span<const uint64_t> hashes, bool is_expected) {
  for (const uint64_t hash : hashes) {
    const uint64_t key = Mixed(FirstGroup(), hash);
    is_expected ? Set(key, kExpected, replica) : Reset(key, kExpected, replica);
  }
}

void PrefixView::Clear(int replica) {
  std::vector<Slot> old(slots_.size());
  old.swap(slots_);
  num_taken_ = 0;
  for (Slot& slot : old) {
    for (Mask& has : slot.has) has &= static_cast<Mask>(~Bit(replica));
    if (slot.is_empty()) continue;
    slots_[Find(slot.key)] = slot;
    ++num_taken_;
  }
}

void PrefixView::Save(int replica, std::vector<uint64_t>& keys,
                      std::vector<uint8_t>& mediums) const {
  for (const Slot& slot : slots_) {
    uint8_t bits = 0;
    for (size_t medium = 0; medium < kExpected; ++medium) {
      if ((slot.has[medium] & Bit(replica)) != 0) bits |= static_cast<uint8_t>(1U << medium);
    }
    if (bits == 0) continue;
    keys.push_back(slot.key);
    mediums.push_back(bits);
  }
}

void PrefixView::Load(int replica, std::span<const uint64_t> keys,
                      std::span<const uint8_t> mediums) {
  for (size_t i = 0; i < std::min(keys.size(), mediums.size()); ++i) {
    for (size_t medium = 0; medium < kExpected; ++medium) {
      if ((mediums[i] >> medium & 1U) != 0) Set(keys[i], medium, replica);
    }
  }
}

std::vector<ViewMatch> PrefixView::Match(std::span<const uint64_t> hashes) const {
  std::vector<ViewMatch> found(num_replicas_);
  Mask alive = static_cast<Mask>((1U << num_replicas_) - 1), hoped = alive;
  Walk walk;
  walk.runs.resize(windows_.size());
  std::array<int32_t, kMaxReplicas> behind{};
  for (size_t i = 0; i < std::min(kAhead, hashes.size()); ++i) Prefetch(hashes[i]);
  for (size_t i = 0; i < hashes.size(); ++i) {
    if (i + kAhead < hashes.size()) Prefetch(hashes[i + kAhead]);
    walk.position = static_cast<int32_t>(i) + 1;
    Mask on_device = alive, expected = 0;
    for (const int32_t group : full_) {
      const Slot& slot = At(Mixed(group, hashes[i]));
      on_device &= slot.has[0];
      alive &= slot.anywhere();
      if (group == FirstGroup()) expected = slot.has[kExpected];
    }
    hoped &= alive | expected;
    if (hoped == 0) break;
    for (unsigned rest = alive & static_cast<Mask>(~on_device); rest != 0; rest &= rest - 1) {
      ++behind[std::countr_zero(rest)];
    }
    for (unsigned rest = Joint(walk, hashes[i], alive); rest != 0; rest &= rest - 1) {
      const int replica = std::countr_zero(rest);
      found[replica].cached = walk.position;
      found[replica].behind = behind[replica];
    }
    for (unsigned rest = hoped; rest != 0; rest &= rest - 1) {
      found[std::countr_zero(rest)].expected = walk.position;
    }
  }
  return found;
}

// Returns those of `alive` whose other groups can go on behind this block, too.
PrefixView::Mask PrefixView::Joint(Walk& walk, uint64_t hash, Mask alive) const {
  Mask joint = alive;
  for (const int32_t group : states_) joint &= At(Mixed(group, hash)).anywhere();
  for (size_t w = 0; w < windows_.size(); ++w) {
    const Mask has = At(Mixed(windows_[w], hash)).anywhere();
    const int32_t needed = std::min(walk.position, groups_[windows_[w]].window_blocks);
    for (int replica = 0; replica < num_replicas_; ++replica) {
      int32_t& run = walk.runs[w][replica];
      run = (has & Bit(replica)) != 0 ? run + 1 : 0;
      if (run < needed) joint &= static_cast<Mask>(~Bit(replica));
    }
  }
  return joint;
}

void PrefixView::Set(uint64_t key, size_t what, int replica) {
  size_t i = Find(key);
  if (slots_[i].is_empty()) {
    if (!MakeRoom()) {
      ++num_ignored_;
      return;
    }
    i = Find(key);
    slots_[i].key = key;
    ++num_taken_;
  }
  slots_[i].has[what] |= Bit(replica);
}

void PrefixView::Reset(uint64_t key, size_t what, int replica) {
  const size_t i = Find(key);
  if (slots_[i].is_empty()) return;
  slots_[i].has[what] &= static_cast<Mask>(~Bit(replica));
  if (slots_[i].is_empty()) Erase(i);
}

// Removes without tombstones: later entries of the probe run move back into the hole.
void PrefixView::Erase(size_t hole) {
  for (size_t i = Next(hole); !slots_[i].is_empty(); i = Next(i)) {
    const size_t home = slots_[i].key & slot_mask_;
    if (((i - home) & slot_mask_) < ((i - hole) & slot_mask_)) continue;
    slots_[hole] = slots_[i];
    hole = i;
  }
  slots_[hole] = Slot{};
  --num_taken_;
}

// Says whether one more block can be noted.
bool PrefixView::MakeRoom() {
  if (4 * (num_taken_ + 1) <= 3 * slots_.size()) return true;
  if (slots_.size() >= max_slots_) return false;
  Resize(2 * slots_.size());
  return true;
}

void PrefixView::Resize(size_t num_slots) {
  std::vector<Slot> old(num_slots);
  old.swap(slots_);
  slot_mask_ = num_slots - 1;
  for (const Slot& slot : old) {
    if (!slot.is_empty()) slots_[Find(slot.key)] = slot;
  }
}

void PrefixView::Prefetch(uint64_t hash) const {
  __builtin_prefetch(&slots_[Mixed(FirstGroup(), hash) & slot_mask_]);
}

void PrefixView::CheckInvariants() const {
  size_t num_taken = 0;
  for (const Slot& slot : slots_) {
    if (slot.is_empty()) continue;
    ++num_taken;
    TS_CHECK(&At(slot.key) == &slot, "a known block is found");
  }
  TS_CHECK(num_taken == num_taken_, "known blocks are counted");
  TS_CHECK(4 * num_taken_ <= 3 * slots_.size(), "a quarter of the table is empty");
}

}  // namespace tokenspeed
