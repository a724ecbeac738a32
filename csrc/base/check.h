// TS_CHECK(condition, message): a broken invariant throws std::logic_error that names it.
// The engine fails the request or restarts; the process is never aborted.
// Thread: any.
#pragma once

#include <stdexcept>
#include <string>

namespace tokenspeed {

[[noreturn]] inline void ThrowBrokenInvariant(const char* condition, const std::string& message) {
  throw std::logic_error("broken invariant: " + message + " (" + condition + ")");
}

}  // namespace tokenspeed

#define TS_CHECK(condition, message)                           \
  do {                                                         \
    if (!(condition)) [[unlikely]] {                           \
      ::tokenspeed::ThrowBrokenInvariant(#condition, message); \
    }                                                          \
  } while (false)
