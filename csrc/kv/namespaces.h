// Names of namespaces: what is cached for one tenant and salt is never found by another of either.
// The nameless tenant's namespaces are named by their salts; all others begin with a byte that no
// UTF-8 text has, and the tenant's number.
// Thread: any.
#pragma once

#include <cstdint>
#include <string>

namespace tokenspeed {

inline constexpr char kTenantMark = '\xff';

// Different for each pair of tenant and salt.
inline std::string NamespaceOf(int64_t tenant, const std::string& salt) {
  if (tenant == 0 && !salt.starts_with(kTenantMark)) return salt;
  std::string name(1, kTenantMark);
  for (int shift = 0; shift < 64; shift += 8) {
    name.push_back(static_cast<char>(static_cast<uint64_t>(tenant) >> shift));
  }
  return name + salt;
}

}  // namespace tokenspeed
