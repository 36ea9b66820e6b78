// ModelHw: the contract of hw/hw.h on the model's clock, and the launch of a kernel on it.
#pragma once

#include "hw/hw.h"
#include "kernel/consumer.h"
#include "kernel/cta.h"
#include "kernel/producer.h"
#include "trace/model.h"
#include "trace/traced_hw.h"

namespace hopgemm::trace {

template <KernelConfig kConfig> class ModelHw : public ModelRole {
 public:
  static constexpr KernelConfig kKernelConfig = kConfig;
  struct TensorMap {};
  struct Accumulator {};
  struct Rounded {};
  using ModelRole::ModelRole;

  template <bool kMulticast>
  void load(const TensorMap&, int offset, uint32_t barrier, int, int, int, int, uint32_t mask, CachePolicy) {
    const OperandTile tile = offset < b_offset(kConfig, 0) ? a_tile(kConfig) : b_tile(kConfig);
    load_bytes(box_rows(tile) * row_bytes(tile), barrier, kMulticast ? mask : 1u << cta_rank());
  }
  void mma(Accumulator&, int, bool) { multiply(); }
  template <int kPending> void mma_wait(Accumulator&) { wait_groups(kPending); }
  void scale(Accumulator&, const EpilogueParams&, const Tile&) {}  // launches here have nothing to scale
  void round(const Accumulator&, Rounded&) { spend(launch().costs.round); }
  template <int kColumns, class Values> void stage(const Values&, int, int, int) {
    spend(launch().costs.stage);
  }
  void store(const TensorMap&, int, int, int, int, int, CachePolicy) { store_piece(); }
  template <int kColumns> void store_direct(const EpilogueParams&, int, int, int, const Tile&) {
    store_piece();
  }
  template <int kPending> void store_wait_read() { wait_stores(kPending); }
};

class ModelRecorder {
 public:
  ModelRecorder(const Model& model, std::vector<Record>& records) : model_(&model), records_(&records) {}
  void begin() { begin_ = now(); }
  void end(Op op, int where) { records_->push_back({begin_, now(), op, static_cast<uint32_t>(where)}); }

 private:
  uint32_t now() const { return static_cast<uint32_t>(model_->now()); }

  const Model* model_;
  std::vector<Record>* records_;
  uint32_t begin_ = 0;
};

// What gemm_kernel does, a fiber for each role. Returns cycles.
template <KernelConfig kConfig> int64_t run_model(const ModelLaunch& launch, Trace& trace) {
  using Hw = TracedHw<ModelHw<kConfig>, ModelRecorder>;
  GemmParams<typename Hw::TensorMap> params{};
  params.grid = launch.grid;
  params.epilogue.d.dtype = kConfig.dtype;
  params.epilogue.tma_columns = INT32_MAX;
  Model model(launch, trace);
  for (int cta = 0; cta < launch.num_ctas; ++cta) {
    for (int consumer = -1; consumer < kNumConsumers; ++consumer) {
      const int role = consumer < 0 ? kProducerRole : consumer;
      auto hw =
          std::make_unique<Hw>(ModelRecorder(model, trace[cta * kNumRoles + role]), model, cta, consumer);
      Hw& h = *hw;
      model.add(std::move(hw), [&h, &params] {
        enter(h, params.grid.split);
        if (h.consumer() >= 0) consume(h, params);
        else produce(h, params, first_tile(h, params));
      });
    }
  }
  return model.run();
}

}  // namespace hopgemm::trace
