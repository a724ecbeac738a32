// Vectors in huge pages: where they lie, and that they are vectors like others.
#include "base/pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace tokenspeed {
namespace {

uintptr_t Place(const void* memory) { return reinterpret_cast<uintptr_t>(memory); }

TEST(PagesTest, WhatFillsAHugePageBeginsAtOne) {
  const PagedVector<int32_t> large(kHugePage / sizeof(int32_t));
  EXPECT_EQ(Place(large.data()) % kHugePage, 0U);
  const PagedVector<int32_t> small(16);
  EXPECT_EQ(Place(small.data()) % 64, 0U);
}

TEST(PagesTest, ATableGetsAHugePageFromAnEighthOn) {
  const TableVector<int32_t> table(kHugePage / 8 / sizeof(int32_t));
  EXPECT_EQ(Place(table.data()) % kHugePage, 0U);
  const TableVector<int32_t> copy = table;
  EXPECT_EQ(copy, table);
  const PagedVector<int32_t> prompt(kHugePage / 8 / sizeof(int32_t));
  EXPECT_EQ(Place(prompt.data()) % 64, 0U);
}

TEST(PagesTest, GrowingFromSmallToLargeKeepsTheValues) {
  PagedVector<int32_t> values;
  for (int32_t i = 0; i < 1'500'000; ++i) values.push_back(i);
  std::vector<int32_t> expected(values.size());
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_TRUE(std::equal(values.begin(), values.end(), expected.begin(), expected.end()));
  PagedVector<int32_t> moved = std::move(values);
  EXPECT_EQ(moved[1'234'567], 1'234'567);
  EXPECT_EQ(PagedVector<int32_t>(moved), moved);
}

TEST(PagesTest, WhatWasGivenBackIsTakenByTheNextOfItsSize) {
#if !defined(__SANITIZE_ADDRESS__)
  constexpr size_t kSize = 3 * kHugePage + 5;
  void* first = TakePages(kSize);
  const size_t num_kept = NumKeptBytes();
  GivePages(first, kSize);
  EXPECT_GE(NumKeptBytes(), num_kept + kSize);
  void* longer = TakePages(8 * kHugePage);
  EXPECT_NE(longer, first);
  void* second = TakePages(kSize + 100);
  EXPECT_EQ(second, first);
  EXPECT_EQ(NumKeptBytes(), num_kept);
  GivePages(longer, 8 * kHugePage);
  GivePages(second, kSize + 100);
#endif
}

TEST(PagesTest, KeptPagesAreBounded) {
  std::vector<PagedVector<int32_t>> many(40);
  for (PagedVector<int32_t>& values : many) values.assign(kHugePage / sizeof(int32_t), 7);
  many.clear();
  EXPECT_LE(NumKeptBytes(), kMaxKeptBytes);
}

TEST(PagesTest, VectorsInKeptPagesBeginWithZeros) {
  const size_t size = kHugePage / sizeof(int32_t);
  for (int32_t round = 0; round < 3; ++round) {
    PagedVector<int32_t> values(size);
    EXPECT_EQ(std::count(values.begin(), values.end(), 0), static_cast<std::ptrdiff_t>(size));
    std::fill(values.begin(), values.end(), 9);
  }
}

}  // namespace
}  // namespace tokenspeed
