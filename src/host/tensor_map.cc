#include "host/tensor_map.h"

#include "host/device.h"
#include "host/status.h"
#include "kernel/layout.h"

namespace hopgemm {
namespace {

struct MapShape {
  DType dtype;
  const void* data;
  int64_t inner, outer, outer_stride;  // elements
  int64_t batch_inner, batch_inner_stride, batch_outer, batch_outer_stride;
  int box_inner, box_outer;
};

Status encode(const MapShape& s, CUtensorMapL2promotion promotion, const char* name, CUtensorMap& map) {
  const EncodeTiled function = encode_tiled();
  if (!function)
    return failure(Code::kNoDevice,
                   "hopgemm: the driver has no cuTensorMapEncodeTiled; driver 580 or newer is needed");
  const CUtensorMapDataType type = s.dtype == DType::kF32   ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                   : s.dtype == DType::kF16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                            : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const int64_t size = size_of(s.dtype);
  // A batch that is broadcast, or absent, is one long and its coordinate always 0; its stride only has to be
  // legal.
  const bool has_inner = s.batch_inner_stride != 0, has_outer = s.batch_outer_stride != 0;
  const cuuint64_t dims[4] = {cuuint64_t(s.inner), cuuint64_t(s.outer),
                              cuuint64_t(has_inner ? s.batch_inner : 1),
                              cuuint64_t(has_outer ? s.batch_outer : 1)};
  const cuuint64_t strides[3] = {cuuint64_t(s.outer_stride * size),
                                 cuuint64_t((has_inner ? s.batch_inner_stride : s.outer_stride) * size),
                                 cuuint64_t((has_outer ? s.batch_outer_stride : s.outer_stride) * size)};
  const cuuint32_t box[4] = {cuuint32_t(s.box_inner), cuuint32_t(s.box_outer), 1, 1}, steps[4] = {1, 1, 1, 1};
  const bool is_half = s.box_inner * size == kSwizzleBytes / 2;  // b_chunk; else rows of 128 bytes
  const auto encode = [&] {
    return function(&map, type, 4, const_cast<void*>(s.data), dims, strides, box, steps,
                    CU_TENSOR_MAP_INTERLEAVE_NONE,
                    is_half ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B, promotion,
                    CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  CUresult result = encode();
  if (result == CUDA_ERROR_INVALID_CONTEXT) {  // a thread that has not used CUDA yet, such as autograd's
    HOPGEMM_TRY(bind_context());
    result = encode();
  }
  if (result != CUDA_SUCCESS)
    return failure(
        Code::kInvalidArgument,
        "hopgemm: no tensor map of %s: address %p, %lld x %lld elements, row stride %lld (driver error %d)",
        name, s.data, static_cast<long long>(s.outer), static_cast<long long>(s.inner),
        static_cast<long long>(s.outer_stride), result);
  return {};
}

MapShape operand_shape(const NormalProblem& p, const NormalOperand& o, int64_t mn, const OperandTile& tile,
                       DType dtype) {
  const bool k_major = o.major == Major::kK;
  return {dtype,
          o.data,
          k_major ? p.k : mn,
          k_major ? mn : p.k,
          k_major ? o.mn_stride : o.k_stride,
          p.batch_inner,
          o.batch_inner_stride,
          p.batch_outer,
          o.batch_outer_stride,
          tile.chunk,
          box_rows(tile)};
}

}  // namespace

Status encode_tensor_maps(const NormalProblem& p, const KernelConfig& config, CUtensorMap& a, CUtensorMap& b,
                          CUtensorMap& d) {
  HOPGEMM_TRY(encode(operand_shape(p, p.a, p.m, a_tile(config), config.dtype),
                     CU_TENSOR_MAP_L2_PROMOTION_L2_128B, "a", a));
  HOPGEMM_TRY(encode(operand_shape(p, p.b, p.n, b_tile(config), config.dtype),
                     CU_TENSOR_MAP_L2_PROMOTION_L2_128B, "b", b));
  if (p.epilogue.tma_columns == 0) return {};
  const EpilogueMatrix& out = p.epilogue.d;
  const MapShape shape{out.dtype,
                       out.data,
                       p.n,
                       p.m,
                       out.row_stride,
                       p.batch_inner,
                       out.batch_inner_stride,
                       p.batch_outer,
                       out.batch_outer_stride,
                       static_cast<int>(kSwizzleBytes / size_of(out.dtype)),
                       kMmaM};
  return encode(shape, CU_TENSOR_MAP_L2_PROMOTION_NONE, "out", d);
}

Status encode_sums_map(const KernelConfig& c, const void* data, int64_t rows, CUtensorMap& sums) {
  const int across = static_cast<int>(kSwizzleBytes / sizeof(float));
  const MapShape shape{DType::kF32, data, c.tile_n, rows, c.tile_n, 1, 0, 1, 0, across, kMmaM};
  return encode(shape, CU_TENSOR_MAP_L2_PROMOTION_NONE, "the sums of a tail", sums);
}

}  // namespace hopgemm
