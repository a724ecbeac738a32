// Chain hashes of a sequence's full blocks: key i names tokens [0, (i + 1) * block_tokens) in their
// namespace. A request keeps its keys, so that a token is hashed once in its life at most.
// Thread: scheduler thread only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/hash.h"

namespace tokenspeed {

class ChainKeys {
 public:
  ChainKeys() = default;
  ChainKeys(const Hash128& root, int32_t block_tokens) : root_(root), block_tokens_(block_tokens) {}

  // Makes room for the keys of so many tokens.
  void Reserve(size_t num_tokens) {
    const size_t num_blocks = num_tokens / static_cast<size_t>(block_tokens_);
    if (num_blocks > keys_.capacity()) keys_.reserve(num_blocks + num_blocks / 4);
  }

  // Hashes what is new. REQUIRES: `tokens` begins with the tokens of the last call.
  void Extend(std::span<const int32_t> tokens) {
    const size_t num_blocks = tokens.size() / static_cast<size_t>(block_tokens_);
    if (num_blocks <= keys_.size()) return;
    Reserve(tokens.size());
    Hash128 key = keys_.empty() ? root_ : keys_.back();
    for (size_t i = keys_.size(); i < num_blocks; ++i) {
      key = HashBlock(key, tokens.subspan(i * block_tokens_, block_tokens_));
      keys_.push_back(key);
    }
  }

  // Adds the key of the next block, which is known already.
  void Append(const Hash128& key) { keys_.push_back(key); }

  // Forgets the keys from `num_blocks` on.
  void Truncate(size_t num_blocks) {
    if (num_blocks < keys_.size()) keys_.resize(num_blocks);
  }

  const Hash128& operator[](size_t index) const { return keys_[index]; }
  // Key of the block before `index`: the namespace's root for the first.
  const Hash128& parent(size_t index) const { return index == 0 ? root_ : keys_[index - 1]; }
  size_t size() const { return keys_.size(); }
  const Hash128& root() const { return root_; }
  size_t num_bytes() const { return keys_.capacity() * sizeof(Hash128); }

 private:
  Hash128 root_;
  int32_t block_tokens_ = 16;
  std::vector<Hash128> keys_;
};

}  // namespace tokenspeed
