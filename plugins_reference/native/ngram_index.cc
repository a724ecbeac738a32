#include "ngram_index.h"

#include <algorithm>

namespace tokenspeed_reference {

NgramIndex::NgramIndex(std::span<const int32_t> tokens)
    : levels_{{kLong, {}, {}}, {kShort, {}, {}}} {
  const size_t room = tokens.size() + tokens.size() / 8 + 64;
  tokens_.reserve(room);
  size_t buckets = kMinBuckets;
  while (buckets < room) buckets *= 2;
  for (Level& level : levels_) {
    level.last.assign(buckets, 0);
    level.previous.reserve(room + 1);
    level.previous.push_back(0);
  }
  Extend(tokens);
}

void NgramIndex::Extend(std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) {
    const bool goes_on = match_ > 0 && tokens_[match_] == token;
    tokens_.push_back(token);
    match_ = goes_on ? match_ + 1 : 0;
    matched_ = goes_on ? matched_ + 1 : 0;
    for (Level& level : levels_) Insert(level, size());
  }
}

int32_t NgramIndex::Match() {
  for (const Level& level : levels_) {
    if (match_ == 0) Search(level);
  }
  return matched_;
}

std::vector<int32_t> NgramIndex::Draft(int32_t count) {
  std::vector<int32_t> draft;
  if (Match() == 0) return draft;
  for (int32_t i = 0; i < count; ++i) {
    const int32_t from = match_ + i;
    draft.push_back(from < size() ? tokens_[from] : draft[from - size()]);
  }
  return draft;
}

void NgramIndex::Insert(Level& level, int32_t place) {
  level.previous.push_back(0);
  if (place < level.length) return;
  if (static_cast<size_t>(place) > level.last.size()) return Grow(level);
  int32_t& last = level.last[BucketOf(level, place)];
  level.previous[place] = last;
  last = place;
}

// Twice the buckets, filled in the order of the places.
void NgramIndex::Grow(Level& level) {
  level.last.assign(level.last.size() * 2, 0);
  for (int32_t place = level.length; place < std::ssize(level.previous); ++place) {
    int32_t& last = level.last[BucketOf(level, place)];
    level.previous[place] = last;
    last = place;
  }
}

size_t NgramIndex::BucketOf(const Level& level, int32_t place) const {
  uint64_t hash = 0;
  for (int32_t i = place - level.length; i < place; ++i) {
    hash = (hash ^ static_cast<uint32_t>(tokens_[i])) * 0x9E3779B97F4A7C15ull;
    hash ^= hash >> 29;
  }
  return hash & (level.last.size() - 1);
}

void NgramIndex::Search(const Level& level) {
  if (size() < level.length) return;
  int32_t place = level.previous[size()];
  for (int32_t i = 0; i < kMaxCandidates && place > 0; ++i, place = level.previous[place]) {
    const int32_t common = CommonLength(place);
    if (common < level.length || common <= matched_) continue;
    match_ = place;
    matched_ = common;
    if (common == kMaxLength) return;
  }
}

// Tokens before `place` that equal those before the end, one by one.
int32_t NgramIndex::CommonLength(int32_t place) const {
  const int32_t most = std::min(place, kMaxLength);
  int32_t common = 0;
  while (common < most && tokens_[place - 1 - common] == tokens_[size() - 1 - common]) ++common;
  return common;
}

}  // namespace tokenspeed_reference
