// What changed in the prefix cache, for routers outside: flat arrays, one entry per change.
// Blocks are named by the 128-bit chain hash of their tokens, and by the cache group that keeps
// them: a group's block comes and goes by itself, on the device and in each tier. Thread: scheduler
// thread only.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/ids.h"

namespace tokenspeed {

enum class KvEvent : uint8_t { kStored, kRemoved, kCleared };
enum class KvMedium : uint8_t { kDevice, kHost, kStore };
inline constexpr std::array<const char*, 3> kKvEvents = {"stored", "removed", "cleared"};
inline constexpr std::array<const char*, 3> kKvMediums = {"device", "host", "store"};

struct EventBatch {
  using Key = std::array<uint8_t, 16>;

  std::vector<uint8_t> kinds;
  std::vector<uint8_t> mediums;
  std::vector<int32_t> groups;
  std::vector<Key> hashes;
  std::vector<Key> parents;         // zeros: the first block of its namespace
  std::vector<int32_t> namespaces;  // index into `salts` for a stored block that begins a prompt
  std::vector<int32_t> token_start{0};
  std::vector<int32_t> tokens;  // of stored blocks
  std::vector<std::string> salts;

  bool empty() const { return kinds.empty(); }

  // `salt`: of the namespace, for a block that begins a prompt; else nullptr.
  void Stored(KvMedium medium, GroupId group, const Hash128& hash, const Hash128& parent,
              const std::string* salt, std::span<const int32_t> block) {
    tokens.insert(tokens.end(), block.begin(), block.end());
    if (salt != nullptr && (salts.empty() || salts.back() != *salt)) salts.push_back(*salt);
    const auto name_space = static_cast<int32_t>(salts.size()) - 1;
    Add(KvEvent::kStored, medium, group, hash, salt == nullptr ? parent : Hash128{},
        salt == nullptr ? -1 : name_space);
  }
  void Removed(KvMedium medium, GroupId group, const Hash128& hash) {
    Add(KvEvent::kRemoved, medium, group, hash, Hash128{}, -1);
  }

 private:
  static Key Bytes(const Hash128& hash) {
    Key key;
    std::memcpy(key.data(), &hash, sizeof(hash));
    return key;
  }
  void Add(KvEvent kind, KvMedium medium, GroupId group, const Hash128& hash, const Hash128& parent,
           int32_t name_space) {
    kinds.push_back(static_cast<uint8_t>(kind));
    mediums.push_back(static_cast<uint8_t>(medium));
    groups.push_back(group.value);
    hashes.push_back(Bytes(hash));
    parents.push_back(Bytes(parent));
    namespaces.push_back(name_space);
    token_start.push_back(static_cast<int32_t>(tokens.size()));
  }
};

}  // namespace tokenspeed
