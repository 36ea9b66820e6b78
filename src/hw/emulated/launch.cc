#include "hw/emulated/launch.h"

#include <cstring>

#include "host/make_params.h"
#include "host/tail.h"
#include "hw/emulated/role.h"

namespace hopgemm::emulated {
namespace {

// host/tensor_map.cc, without a driver.
TensorMap make_map(const void* data, int64_t element_bytes, const int64_t (&size)[4],
                   const int64_t (&stride)[3], int box_rows, int row_bytes = kSwizzleBytes) {
  TensorMap map;
  map.data = static_cast<char*>(const_cast<void*>(data));
  map.element_bytes = static_cast<int>(element_bytes);
  map.box_rows = box_rows, map.row_bytes = row_bytes;
  // A broadcast batch is one long: its coordinate is always 0.
  for (int i = 0; i < 4; ++i) map.size[i] = i < 2 || stride[i - 1] != 0 ? size[i] : 1;
  map.stride[0] = element_bytes;
  for (int i = 0; i < 3; ++i) map.stride[i + 1] = stride[i] * element_bytes;
  return map;
}

TensorMap operand_map(const NormalProblem& p, const NormalOperand& o, int64_t mn, const OperandTile& tile) {
  const bool k_major = o.major == Major::kK;
  return make_map(o.data, 2, {k_major ? p.k : mn, k_major ? mn : p.k, p.batch_inner, p.batch_outer},
                  {k_major ? o.mn_stride : o.k_stride, o.batch_inner_stride, o.batch_outer_stride},
                  box_rows(tile), row_bytes(tile));
}

void pack(NormalOperand& o, int64_t mn, int64_t k, uint16_t* to) {
  const auto* const from = static_cast<const uint16_t*>(o.source.data);
  int64_t copies = 1;
  for (int i = 0; i < o.source_batch_dims; ++i) copies *= o.source_batch[i];
  for (int64_t copy = 0; copy < copies; ++copy) {
    int64_t offset = 0, rest = copy;
    for (int i = o.source_batch_dims - 1; i >= 0; --i) {
      offset += rest % o.source_batch[i] * o.source.batch_stride[i];
      rest /= o.source_batch[i];
    }
    for (int64_t i = 0; i < mn; ++i)
      for (int64_t j = 0; j < k; ++j)
        to[(copy * mn + i) * o.mn_stride + j] =
            from[offset + i * o.source.row_stride + j * o.source.col_stride];
  }
  o.data = to;
}

}  // namespace

Launch make_launch(const NormalProblem& p, const Config& config, int num_ctas, float* sums) {
  Launch launch{config.kernel, make_params<TensorMap>(p, config), num_ctas};
  Params& params = launch.params;
  params.a = operand_map(p, p.a, p.m, a_tile(config.kernel));
  params.b = operand_map(p, p.b, p.n, b_tile(config.kernel));
  const EpilogueMatrix& d = p.epilogue.d;
  params.d = make_map(d.data, size_of(d.dtype), {p.n, p.m, p.batch_inner, p.batch_outer},
                      {d.row_stride, d.batch_inner_stride, d.batch_outer_stride}, kMmaM);
  const int64_t width = config.kernel.tile_n;
  if (sums)
    params.sums = make_map(sums, sizeof(float), {width, sums_rows(config.kernel, params.grid), 1, 1},
                           {width, 0, 0}, kMmaM);
  return launch;
}

// One CTA's tile of the tail.
static void add_tile(const NormalProblem& p, const KernelConfig& c, const TileGrid& grid, int tail_block,
                     int rank, const float* sums) {
  const Block block = block_at(grid, grid.whole + tail_block);
  const Origin origin = origin_of(c, block, rank);
  const Parts parts = parts_of(grid, tail_block);
  const Tile t{origin.m, origin.n, block.batch_inner, block.batch_outer, {}, false};
  const int groups = add_groups(grid);
  auto sum_at = [&](int row, int col) {
    float sum = 0;
    bool any = false;
    for (int group = 0; group < groups; ++group) {
      const int first = first_of_group(parts.count, groups, group);
      const int end = first_of_group(parts.count, groups, group + 1);
      float of_group = 0;
      for (int i = first; i < end; ++i) {
        const float part = sums[(part_row(c, parts.first + i, rank) + row) * c.tile_n + col];
        of_group = i == first ? part : of_group + part;
      }
      if (first < end) sum = any ? sum + of_group : of_group, any = true;
    }
    return sum;
  };
  for (int i = 0; i < c.tile_m && t.m + i < p.m; ++i)
    for (int j = 0; j < c.tile_n && t.n + j < p.n; ++j)
      write_element(p.epilogue, c.dtype, t, t.m + i, t.n + j,
                    scale_element(p.epilogue, c.dtype, t, t.m + i, t.n + j, sum_at(i, j)));
}

void add_tail(const NormalProblem& p, const KernelConfig& c, const TileGrid& grid, const float* sums) {
  for (int block = 0; block < grid.num_blocks - grid.whole; ++block)
    for (int rank = 0; rank < cluster_size(c); ++rank) add_tile(p, c, grid, block, rank, sums);
}

void pack_operands(NormalProblem& p, void* workspace) {
  char* free = static_cast<char*>(workspace);
  for (auto& [operand, mn] : {std::pair<NormalOperand&, int64_t>{p.a, p.m}, {p.b, p.n}}) {
    if (!operand.pack) continue;
    pack(operand, mn, p.k, reinterpret_cast<uint16_t*>(free));
    free += operand.packed_bytes;
  }
}

}  // namespace hopgemm::emulated
