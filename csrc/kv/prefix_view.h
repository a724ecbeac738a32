// What several replicas have cached, as their events tell: for each block of a cache group, which
// replicas have it on the device, on the host, in the store, and which are about to compute it.
// One table for all of them, so that one walk along a prompt's hashes answers for every replica.
// Blocks are known by the low half of their chain hash: two that share it cost a wrong choice of
// replica and never a wrong answer, since an engine verifies what it finds.
// Owns 16 bytes a slot, at most 3/4 of them taken: 21 to 43 bytes a block. Bounded: a full table
// notes no further block. Knows no tokens.
// Thread: one at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kv/events.h"

namespace tokenspeed {

// A cache group as the view walks it.
struct ViewGroup {
  enum class Kind : uint8_t { kFull, kWindow, kState };
  Kind kind = Kind::kFull;
  int32_t window_blocks = 0;  // blocks that the last window touches; 0 for the other kinds
};

// What a replica has of a prompt, in blocks.
struct ViewMatch {
  int32_t cached = 0;    // longest prefix that every group can go on from, wherever it lies
  int32_t behind = 0;    // of these, blocks that are not on the device
  int32_t expected = 0;  // prefix that is cached or about to be computed
};

class PrefixView {
 public:
  static constexpr int kMaxReplicas = 16;
  static constexpr size_t kMinSlots = 1024;

  // REQUIRES: 0 < num_replicas <= kMaxReplicas; one group or more; max_slots a power of two,
  // kMinSlots or more.
  PrefixView(int num_replicas, std::vector<ViewGroup> groups, size_t max_slots);

  // One change of a replica's cache. Telling of a block twice changes nothing. O(1) amortised.
  void Stored(int replica, KvMedium medium, int32_t group, uint64_t hash) {
    Set(Mixed(group, hash), static_cast<size_t>(medium), replica);
  }
  void Removed(int replica, KvMedium medium, int32_t group, uint64_t hash) {
    Reset(Mixed(group, hash), static_cast<size_t>(medium), replica);
  }

  // Notes that a replica is about to compute these blocks; or that it has ended, either way.
  void Expect(int replica, std::span<const uint64_t> hashes, bool is_expected);

  // Forgets all that a replica has, and what is expected of it. O(slots).
  void Clear(int replica);

  // All that a replica has: keys of this view, and beside each a bit for each medium. What one view
  // has saved another one loads. O(slots), O(keys).
  void Save(int replica, std::vector<uint64_t>& keys, std::vector<uint8_t>& mediums) const;
  void Load(int replica, std::span<const uint64_t> keys, std::span<const uint8_t> mediums);

  // Returns what each replica has of a prompt whose full blocks have these hashes. O(blocks that
  // any replica has x groups).
  std::vector<ViewMatch> Match(std::span<const uint64_t> hashes) const;

  int num_replicas() const { return num_replicas_; }
  size_t num_groups() const { return groups_.size(); }
  size_t num_blocks() const { return num_taken_; }  // known, of all groups and replicas
  size_t num_bytes() const { return slots_.size() * sizeof(Slot); }
  size_t num_ignored() const { return num_ignored_; }  // told of while the table was full

  void CheckInvariants() const;

 private:
  using Mask = uint16_t;  // a bit for each replica
  static constexpr size_t kExpected = 3;
  struct Slot {
    uint64_t key = 0;
    std::array<Mask, 4> has{};  // [medium], and expected; all zero: the slot is empty
    bool is_empty() const { return (has[0] | has[1] | has[2] | has[3]) == 0; }
    Mask anywhere() const { return has[0] | has[1] | has[2]; }
  };
  static_assert(sizeof(Slot) == 16 && kMaxReplicas == 8 * sizeof(Mask));

  static constexpr uint64_t Mixed(int32_t group, uint64_t hash) {
    return hash ^ (static_cast<uint64_t>(group) * 0x9e3779b97f4a7c15ULL);
  }
  static Mask Bit(int replica) { return static_cast<Mask>(1U << replica); }

  // The group under which blocks are expected: one that has all of a prefix, if there is any.
  int32_t FirstGroup() const { return full_.empty() ? 0 : full_.front(); }
  size_t Next(size_t i) const { return (i + 1) & slot_mask_; }
  // The slot of a key, or the empty one where it would go.
  size_t Find(uint64_t key) const {
    size_t i = key & slot_mask_;
    while (slots_[i].key != key && !slots_[i].is_empty()) i = Next(i);
    return i;
  }
  // Of a key that is not there, an empty slot: nobody has it.
  const Slot& At(uint64_t key) const { return slots_[Find(key)]; }
  void Set(uint64_t key, size_t what, int replica);
  void Reset(uint64_t key, size_t what, int replica);
  void Erase(size_t hole);
  bool MakeRoom();
  void Resize(size_t num_slots);
  void Prefetch(uint64_t hash) const;

  struct Walk;
  Mask Joint(Walk& walk, uint64_t hash, Mask alive) const;

  int num_replicas_;
  std::vector<ViewGroup> groups_;
  std::vector<int32_t> full_, windows_, states_;  // indices of groups
  size_t max_slots_;
  size_t slot_mask_ = kMinSlots - 1;
  std::vector<Slot> slots_;
  size_t num_taken_ = 0;
  size_t num_ignored_ = 0;
};

}  // namespace tokenspeed
