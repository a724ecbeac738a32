// Errors that a user meets; bindings/errors.cc maps each to the class of the same name in
// tokenspeed.errors. A caller's mistake is std::invalid_argument, a broken invariant TS_CHECK.
// Thread: any.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>

namespace tokenspeed {

// This request is invalid. `code` is an OpenAI error code or empty.
class RequestError : public std::runtime_error {
 public:
  explicit RequestError(const std::string& message, std::string code = "")
      : std::runtime_error(message), code_(std::move(code)) {}
  const std::string& code() const { return code_; }

 private:
  std::string code_;
};

// It can never fit (no retry time), or the queue is full now.
class CapacityError : public std::runtime_error {
 public:
  explicit CapacityError(const std::string& message, std::optional<int> retry_after_s = {})
      : std::runtime_error(message), retry_after_s_(retry_after_s) {}
  std::optional<int> retry_after_s() const { return retry_after_s_; }

 private:
  std::optional<int> retry_after_s_;
};

}  // namespace tokenspeed
