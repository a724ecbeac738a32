#include "base/version.h"

#include <gtest/gtest.h>

TEST(VersionTest, IsNotEmpty) { EXPECT_STRNE(tokenspeed::kVersion, ""); }
