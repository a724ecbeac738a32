// 128-bit multiply-mix hash of token blocks, chained over parents. Not cryptographic: every hit is
// verified, so a collision costs a miss and never a wrong answer.
// Source: wyhash, https://github.com/wangyi-fudan/wyhash; four lanes and two outputs are ours.
// Thread: any.
#pragma once

#include <compare>
#include <cstdint>
#include <cstring>
#include <span>

namespace tokenspeed {

struct Hash128 {
  uint64_t lo = 0;
  uint64_t hi = 0;
  constexpr auto operator<=>(const Hash128&) const = default;
};

namespace hash_internal {

__extension__ using Wide = unsigned __int128;

inline constexpr uint64_t kSalt[6] = {0xa0761d6478bd642fULL, 0xe7037ed1a0b428dbULL,
                                      0x8ebc6af09c88c6e3ULL, 0x589965cc75374cc3ULL,
                                      0x1d8e4e27c47d124fULL, 0xeb44accab455d165ULL};

inline uint64_t Mix(uint64_t a, uint64_t b) {
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

inline uint64_t Word(const int32_t* tokens) {
  uint64_t word;
  std::memcpy(&word, tokens, sizeof(word));
  return word;
}

}  // namespace hash_internal

// Hash of one full block after `parent`. REQUIRES: tokens.size() is a multiple of 16.
inline Hash128 HashBlock(const Hash128& parent, std::span<const int32_t> tokens) {
  using namespace hash_internal;
  uint64_t lane0 = parent.lo ^ kSalt[0], lane1 = parent.hi ^ kSalt[1];
  uint64_t lane2 = parent.lo ^ kSalt[2], lane3 = parent.hi ^ kSalt[3];
  for (const int32_t *t = tokens.data(), *end = t + tokens.size(); t != end; t += 16) {
    lane0 = Mix(Word(t) ^ kSalt[1], Word(t + 2) ^ lane0);
    lane1 = Mix(Word(t + 4) ^ kSalt[2], Word(t + 6) ^ lane1);
    lane2 = Mix(Word(t + 8) ^ kSalt[3], Word(t + 10) ^ lane2);
    lane3 = Mix(Word(t + 12) ^ kSalt[4], Word(t + 14) ^ lane3);
  }
  const uint64_t size = tokens.size();
  return {Mix(lane0 ^ kSalt[5], lane1 ^ size) ^ Mix(lane2 ^ kSalt[4], lane3 ^ kSalt[1]),
          Mix(lane0 ^ kSalt[3], lane2 ^ size) ^ Mix(lane1 ^ kSalt[0], lane3 ^ kSalt[2])};
}

// Root of a namespace's chains.
inline Hash128 HashRoot(uint64_t seed, std::span<const char> salt) {
  using namespace hash_internal;
  Hash128 root{Mix(seed ^ kSalt[0], kSalt[1]), Mix(seed ^ kSalt[2], kSalt[3])};
  for (const char byte : salt) {
    const auto value = static_cast<uint64_t>(static_cast<unsigned char>(byte)) + 1;
    root = {Mix(root.lo ^ value, kSalt[4]), Mix(root.hi ^ value, kSalt[5])};
  }
  return root;
}

}  // namespace tokenspeed
