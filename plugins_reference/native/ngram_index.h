// Where the last tokens of a sequence stood before, and what came after them.
// Every n-gram of two lengths is chained to the one before it that fell into the same bucket, as in
// LZ77 coders; chains are walked for a bounded number of candidates, and those compared backwards.
// A match that goes on needs no search. Owns a copy of the tokens; about 28 bytes a token in all.
// Cost: Extend O(1) a token, amortised; Match and Draft O(1) whatever the length of the sequence.
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tokenspeed_reference {

class NgramIndex {
 public:
  static constexpr int32_t kShort = 3, kLong = 8;  // lengths of the n-grams

  explicit NgramIndex(std::span<const int32_t> tokens);

  // Appends tokens.
  void Extend(std::span<const int32_t> tokens);

  // Returns how many of the last tokens stood before as they stand now: the longest found, the
  // latest of equal ones; 0 if fewer than kShort did. At the first call after a mismatch of a
  // long match it counts kMaxLength at most, and goes on from there.
  int32_t Match();

  // Returns the `count` tokens that came after the match. Where it reaches the end it repeats
  // itself. Empty without a match.
  std::vector<int32_t> Draft(int32_t count);

  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }

 private:
  static constexpr int32_t kMaxCandidates = 16, kMaxLength = 64, kMinBuckets = 256;

  // N-grams of one length. Places are ends: tokens [place - length, place). 0: none.
  struct Level {
    int32_t length;
    std::vector<int32_t> last;      // by bucket: the newest place
    std::vector<int32_t> previous;  // by place: the one before it in its bucket
  };

  void Insert(Level& level, int32_t place);
  void Grow(Level& level);
  size_t BucketOf(const Level& level, int32_t place) const;
  void Search(const Level& level);
  int32_t CommonLength(int32_t place) const;

  std::vector<int32_t> tokens_;
  Level levels_[2];  // the long one first
  // The match: tokens [match_ - matched_, match_) equal the last `matched_` tokens. 0: not known.
  int32_t match_ = 0, matched_ = 0;
};

}  // namespace tokenspeed_reference
