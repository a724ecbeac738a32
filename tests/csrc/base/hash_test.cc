#include "base/hash.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace tokenspeed {
namespace {

TEST(HashTest, DependsOnEveryTokenAndOnTheParent) {
  std::vector<int32_t> tokens(128, 5);
  const Hash128 root = HashRoot(1, std::string_view(""));
  std::set<Hash128> seen{HashBlock(root, tokens)};
  for (size_t i = 0; i < tokens.size(); ++i) {
    std::vector<int32_t> edited = tokens;
    edited[i] = 6;
    EXPECT_TRUE(seen.insert(HashBlock(root, edited)).second) << "token " << i;
  }
  EXPECT_TRUE(seen.insert(HashBlock(HashRoot(1, std::string_view("a")), tokens)).second);
  EXPECT_TRUE(seen.insert(HashBlock(HashRoot(2, std::string_view("")), tokens)).second);
}

TEST(HashTest, SwappedTokensDiffer) {
  std::vector<int32_t> tokens(16);
  for (int i = 0; i < 16; ++i) tokens[i] = i;
  std::set<Hash128> seen{HashBlock({}, tokens)};
  for (int i = 0; i < 16; ++i) {
    for (int j = i + 1; j < 16; ++j) {
      std::swap(tokens[i], tokens[j]);
      EXPECT_TRUE(seen.insert(HashBlock({}, tokens)).second) << i << " " << j;
      std::swap(tokens[i], tokens[j]);
    }
  }
}

TEST(HashTest, SaltsOfDifferentLengthDiffer) {
  const Hash128 one = HashRoot(0, std::string_view("\0", 1));
  EXPECT_NE(one, HashRoot(0, std::string_view("")));
  EXPECT_NE(one, HashRoot(0, std::string_view("\0\0", 2)));
}

}  // namespace
}  // namespace tokenspeed
