// The hash of the sources of which the library was made, by which an old library is noticed.
#include "core.h"

EXPORT const char *sources_sha256(void) {
    return SOURCES_SHA256;
}
