// How changes of a cache, and all that a view knows of one, travel from an engine to its routers:
// records of fixed size, one after the other, little-endian, without padding.
//
//   change   8 bytes hash, low half | 1 byte kind + 4 x medium | 1 byte group
//   known    8 bytes key of the view | 1 byte, a bit for each medium
//
// Thread: any.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "kv/events.h"
#include "kv/prefix_view.h"

namespace tokenspeed {

inline constexpr size_t kChangeBytes = 10, kKnownBytes = 9;
static_assert(std::endian::native == std::endian::little);

// Returns the changes of full blocks in order.
inline std::string PackChanges(const EventBatch& batch) {
  std::string packed(batch.kinds.size() * kChangeBytes, '\0');
  char* at = packed.data();
  for (size_t i = 0; i < batch.kinds.size(); ++i, at += kChangeBytes) {
    std::memcpy(at, batch.hashes[i].data(), sizeof(uint64_t));
    at[8] = static_cast<char>(batch.kinds[i] + 4 * batch.mediums[i]);
    at[9] = static_cast<char>(batch.groups[i]);
  }
  return packed;
}

// Throws: std::invalid_argument for bytes that are no changes of these groups; those before the
// first wrong one are noted.
inline void ApplyChanges(PrefixView& view, int replica, std::string_view packed) {
  if (packed.size() % kChangeBytes != 0) throw std::invalid_argument("changes have 10 bytes each");
  for (size_t at = 0; at < packed.size(); at += kChangeBytes) {
    uint64_t hash;
    std::memcpy(&hash, &packed[at], sizeof(hash));
    const auto what = static_cast<uint8_t>(packed[at + 8]);
    const auto group = static_cast<uint8_t>(packed[at + 9]);
    const auto kind = static_cast<KvEvent>(what % 4);
    if (what / 4 >= kKvMediums.size() || kind > KvEvent::kRemoved || group >= view.num_groups()) {
      throw std::invalid_argument("a change names an unknown kind, medium or group");
    }
    const auto medium = static_cast<KvMedium>(what / 4);
    if (kind == KvEvent::kStored) {
      view.Stored(replica, medium, group, hash);
    } else {
      view.Removed(replica, medium, group, hash);
    }
  }
}

inline std::string PackKnown(const PrefixView& view, int replica) {
  std::vector<uint64_t> keys;
  std::vector<uint8_t> mediums;
  view.Save(replica, keys, mediums);
  std::string packed(keys.size() * kKnownBytes, '\0');
  for (size_t i = 0; i < keys.size(); ++i) {
    std::memcpy(&packed[i * kKnownBytes], &keys[i], sizeof(uint64_t));
    packed[i * kKnownBytes + 8] = static_cast<char>(mediums[i]);
  }
  return packed;
}

// Throws: std::invalid_argument for bytes that no view has packed.
inline void LoadKnown(PrefixView& view, int replica, std::string_view packed) {
  if (packed.size() % kKnownBytes != 0) throw std::invalid_argument("known blocks have 9 bytes");
  std::vector<uint64_t> keys(packed.size() / kKnownBytes);
  std::vector<uint8_t> mediums(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    std::memcpy(&keys[i], &packed[i * kKnownBytes], sizeof(uint64_t));
    mediums[i] = static_cast<uint8_t>(packed[i * kKnownBytes + 8]);
  }
  view.Load(replica, keys, mediums);
}

}  // namespace tokenspeed
