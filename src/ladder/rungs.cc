// The table of rungs, in the order of the climb; then the side rungs.
#include <iterator>

#include "ladder/rung.h"

namespace hopgemm::ladder {

extern const Rung kRung00, kRung01, kRung02, kRung03a, kRung03b, kRung04, kRung05, kRung06, kRung07, kRung08,
    kRung09, kRung09n, kRung10, kRung10n, kRung11, kRung12, kSidePingpong, kSideStatic, kSideCounter,
    kSideFp16;

const Rung* const kRungs[] = {
    &kRung00, &kRung01, &kRung02,       &kRung03a,    &kRung03b,     &kRung04,   &kRung05,
    &kRung06, &kRung07, &kRung08,       &kRung09,     &kRung09n,     &kRung10,   &kRung10n,
    &kRung11, &kRung12, &kSidePingpong, &kSideStatic, &kSideCounter, &kSideFp16,
};
const int kNumRungs = std::size(kRungs);

}  // namespace hopgemm::ladder
