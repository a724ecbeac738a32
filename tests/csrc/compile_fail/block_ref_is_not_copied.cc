// Expect: deleted
#include "kv/block_pool.h"

tokenspeed::BlockRef Duplicate(const tokenspeed::BlockRef& ref) { return ref; }
