// What entered and left the cache, as flat arrays that the scheduler hands on: routers learn from
// them which engine has which prefix. Off, it costs one test per published or evicted block.
// A full block is stored when it becomes matchable and removed when it is evicted; a group's kind
// says which part of it: its full blocks, a window block, or a snapshot of state. Each event has
// the chain key of its block; a stored full block has its parent's key and its tokens too.
// Thread: scheduler thread only.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"

namespace tokenspeed {

class KvEvents {
 public:
  enum class Type : uint8_t { kStored, kRemoved };
  enum class Part : uint8_t { kFull, kWindow, kState };
  struct Event {
    Type type;
    Part part;
    int32_t name;        // namespace: index into names(), -1 when removed
    int32_t num_tokens;  // tokens of a stored full block; offset in the block of a snapshot
    bool has_parent;     // false: the first block of its namespace
    Hash128 key;
    Hash128 parent;
  };

  explicit KvEvents(bool is_on) : is_on_(is_on) {}
  bool is_on() const { return is_on_; }

  void Stored(Part part, const Hash128& key, const Hash128* parent, std::span<const int32_t> tokens,
              const std::string& name) {
    if (names_.empty() || names_.back() != name) names_.push_back(name);
    events_.push_back({Type::kStored, part, static_cast<int32_t>(names_.size()) - 1,
                       static_cast<int32_t>(tokens.size()), parent != nullptr, key,
                       parent != nullptr ? *parent : Hash128{}});
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  }
  void Removed(Part part, const Hash128& key) {
    events_.push_back({Type::kRemoved, part, -1, 0, false, key, {}});
  }

  const std::vector<Event>& events() const { return events_; }
  const std::vector<int32_t>& tokens() const { return tokens_; }  // of stored blocks, in order
  const std::vector<std::string>& names() const { return names_; }
  void Clear() {
    events_.clear();
    tokens_.clear();
    names_.clear();
  }

 private:
  bool is_on_;
  std::vector<Event> events_;
  std::vector<int32_t> tokens_;
  std::vector<std::string> names_;
};

}  // namespace tokenspeed
