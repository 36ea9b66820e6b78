// The rungs that are written as roles, and so run on the emulated machine too: 2 to 11.
#pragma once
#include "ladder/emulate.h"
#include "ladder/rung_02_wgmma.cu"
#include "ladder/rung_03_ring.cu"
#include "ladder/rung_04_persistent.cu"
#include "ladder/rung_05_producer_consumer.cu"
#include "ladder/rung_06_two_consumers.cu"
#include "ladder/rung_07_in_flight.cu"
#include "ladder/rung_08_registers.cu"
#include "ladder/rung_09_cluster.cu"
#include "ladder/rung_10_staged_epilogue.cu"
#include "ladder/rung_11_hilbert.cu"

namespace hopgemm::ladder {

inline constexpr EmulatedRung kEmulatedRungs[] = {
    emulated_rung<Rung02>("2"),          emulated_rung<Rung03<2>>("3a"),
    emulated_rung<Rung03<4>>("3b"),      emulated_rung<Rung04>("4"),
    emulated_rung<Rung05>("5"),          emulated_rung<Rung06>("6"),
    emulated_rung<Rung07>("7"),          emulated_rung<Rung08>("8"),
    emulated_rung<Rung09<320, 3>>("9"),  emulated_rung<Rung09<256, 4>>("9n"),
    emulated_rung<Rung10<320, 3>>("10"), emulated_rung<Rung10<256, 4>>("10n"),
    emulated_rung<Rung11>("11"),
};

}  // namespace hopgemm::ladder
