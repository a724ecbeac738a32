#include "base/version.h"
