// Vectors in huge pages: where they lie, and that they are vectors like others.
#include "base/pages.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>

namespace tokenspeed {
namespace {

uintptr_t Place(const void* memory) { return reinterpret_cast<uintptr_t>(memory); }

TEST(PagesTest, WhatFillsAHugePageBeginsAtOne) {
  const PagedVector<int32_t> large(PageAllocator<int32_t>::kHugePage / sizeof(int32_t));
  EXPECT_EQ(Place(large.data()) % PageAllocator<int32_t>::kHugePage, 0U);
  const PagedVector<int32_t> small(16);
  EXPECT_EQ(Place(small.data()) % 64, 0U);
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

}  // namespace
}  // namespace tokenspeed
