// One product on the emulator, checked bit for bit: integers whose sums are exact, operands that lie between
// NaNs, a result that lies between canaries.
#pragma once
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "hw/emulated/hw.h"
#include "hw/emulated/launch.h"

namespace hopgemm::test {

using Kernel = emulated::Result (*)(const emulated::Launch&);

struct Case {
  int m = 1, n = 1, k = 1, batch = 1;
  bool share_a = false, share_b = false;  // a broadcast batch
  DType out = DType::kBF16;
  Store store = Store::kTma;
  bool c = false, bias = false;
  float alpha = 1;
  Schedule schedule;
  int num_ctas = 1;
  std::string describe() const;
};

// Operands, result and expectation of one case; run() may be called with many seeds.
class Product {
 public:
  Product(const KernelConfig& config, const Case& c, uint64_t data_seed);
  // Empty: right. Else what was found. `events`: where the log goes, if anywhere.
  std::string run(Kernel kernel, uint64_t seed, std::vector<emulated::Event>* events = nullptr);
  bool find_races = true;

 private:
  struct Operand {
    std::vector<uint16_t> memory;
    int64_t ld = 0, batch_stride = 0;  // elements
    int64_t start = 0;
  };
  Operand make_operand(int rows, int cols, int copies, emulated::Random& random);
  float at(const Operand& x, Major major, int batch, int mn, int k) const;
  void expect();

  KernelConfig config_, called_;
  Case case_;
  Operand a_, b_;
  std::vector<float> c_, bias_;
  std::vector<uint8_t> d_, expected_;
  int64_t d_ld_ = 0, d_batch_stride_ = 0;  // elements
};

}  // namespace hopgemm::test
