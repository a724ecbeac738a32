// The version string that the extension reports; set from pyproject by the tests, not by hand.
// Thread: any.
#pragma once

namespace tokenspeed {

inline constexpr const char* kVersion = "0.1.0";

}  // namespace tokenspeed
