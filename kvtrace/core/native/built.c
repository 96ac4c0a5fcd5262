// Of which sources the library was made, so that one which is older than its sources is noticed.
#include "core.h"

EXPORT const char *sources_sha256(void) {
    return SOURCES_SHA256;
}
